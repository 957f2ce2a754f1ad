//! A Program as text, for golden tests: a diff shows which action moved.

use std::fmt::Write as _;

use super::{ActionKind, Program};

/// One line an action: thread, unit, cause, what it does. Times are absent, as a Program has none.
pub fn text_timeline(program: &Program, class: usize) -> String {
    let mut out = String::new();
    for thread in &program.classes[class].threads {
        let _ = writeln!(out, "thread {}", thread.name);
        for action in &thread.actions {
            let tag = program.tag(action);
            let what = match action.kind {
                ActionKind::Host => program.host_work(action).class.clone(),
                ActionKind::Launch { stream, kernel } => format!(
                    "launch {} on {}",
                    program.kernels[kernel.index()].name,
                    program.streams[stream.index()].name
                ),
                ActionKind::Collective { comm, stream, call } => {
                    let call = &program.collectives[call.index()];
                    format!(
                        "{} {} B over {} on {}",
                        call.op.name(),
                        call.bytes,
                        program.communicators[comm.index()].name,
                        program.streams[stream.index()].name
                    )
                }
                ActionKind::EventRecord { event, stream } => {
                    format!(
                        "record e{} on {}",
                        event.0,
                        program.streams[stream.index()].name
                    )
                }
                ActionKind::StreamWait { event, stream } => {
                    format!(
                        "{} waits e{}",
                        program.streams[stream.index()].name,
                        event.0
                    )
                }
                ActionKind::HostWaitEvent { event } => format!("host waits e{}", event.0),
                ActionKind::HostWaitStream { stream } => {
                    format!("host waits {}", program.streams[stream.index()].name)
                }
                ActionKind::HostWaitDevice => "host waits device".to_owned(),
                ActionKind::Alloc { block } => {
                    format!("alloc {} B", program.blocks[block.index()].bytes)
                }
                ActionKind::Free { block } => {
                    format!("free {} B", program.blocks[block.index()].bytes)
                }
                ActionKind::Signal { signal } => format!("signal s{}", signal.0),
                ActionKind::Await { signal } => format!("await s{}", signal.0),
            };
            let cause = program.cause_name(tag.cause);
            let _ = writeln!(
                out,
                "  {:<9} {:<20} {cause:<26} {what}",
                tag.phase.name(),
                tag.unit
            );
        }
    }
    out
}
