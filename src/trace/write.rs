//! A timeline as Chrome trace JSON, which Perfetto and Kineto's tools open: host threads and
//! streams as tracks, launches joined to kernels by arrows, the cause of every action as an argument.

use std::fmt::Write as _;

use crate::engine::Iteration;
use crate::program::{Action, ActionKind, Program};
use crate::units::Ns;

/// Thread ids of streams start here, so that they never meet those of host threads.
const STREAM_TID: u32 = 1000;

/// Writes an iteration that has spans. Times are microseconds with three decimals, from integer
/// nanoseconds since the start of the iteration.
pub fn chrome_trace(program: &Program, iteration: &Iteration) -> String {
    let mut out =
        String::from("{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    let mut first = true;
    let mut event = |text: String| {
        if !std::mem::take(&mut first) {
            out.push_str(",\n");
        }
        out.push_str(&text);
    };
    event(metadata("process_name", 0, "rank 0"));
    for (index, thread) in program.classes[0].threads.iter().enumerate() {
        event(metadata("thread_name", index as u32, &thread.name));
    }
    let mut used: Vec<u32> = iteration.device.iter().map(|span| span.stream).collect();
    used.sort_unstable();
    used.dedup();
    for stream in used {
        let name = format!("stream {}", program.streams[stream as usize].name);
        event(metadata("thread_name", STREAM_TID + stream, &name));
    }
    let since = |ns: Ns| ns.saturating_sub(iteration.start_ns);
    for span in &iteration.host {
        let action =
            &program.classes[0].threads[span.thread as usize].actions[span.action as usize];
        let (work_ns, wait_ns) = (
            span.work_end_ns - span.start_ns,
            span.end_ns - span.work_end_ns,
        );
        let class = &program.host_work(action).class;
        let track = (span.thread, args(program, action, class));
        if work_ns > 0 {
            let name = if class.is_empty() { "host" } else { class };
            let category = if class.starts_with("launch/") {
                "cuda_runtime"
            } else {
                "cpu_op"
            };
            event(complete(
                name,
                category,
                &track,
                since(span.start_ns),
                work_ns,
            ));
        }
        if wait_ns > 0 {
            let name = format!("wait: {:?}", span.wait);
            event(complete(
                &name,
                "wait",
                &track,
                since(span.work_end_ns),
                wait_ns,
            ));
        }
    }
    for (index, span) in iteration.device.iter().enumerate() {
        let action =
            &program.classes[0].threads[span.thread as usize].actions[span.action as usize];
        let (name, detail) = device_name(program, action);
        let args = format!("{},\"correlation\":{index}", args(program, action, &detail));
        let (tid, start_ns) = (STREAM_TID + span.stream, since(span.start_ns));
        event(complete(
            &name,
            "kernel",
            &(tid, args),
            start_ns,
            span.end_ns - span.start_ns,
        ));
        event(flow('s', index, span.thread, since(span.enqueued_ns)));
        event(flow('f', index, tid, start_ns));
    }
    out.push_str("\n]}\n");
    out
}

/// Name and description of what an action puts on a stream.
fn device_name(program: &Program, action: &Action) -> (String, String) {
    match action.kind {
        ActionKind::Launch { kernel, .. } => {
            let kernel = &program.kernels[kernel.index()];
            (kernel.name.clone(), format!("{:.0} bytes", kernel.bytes))
        }
        ActionKind::Collective { comm, call, .. } => {
            let (call, comm) = (
                &program.collectives[call.index()],
                &program.communicators[comm.index()],
            );
            let detail = format!(
                "{} bytes over {} ({} ranks)",
                call.bytes,
                comm.name,
                comm.group_size(0)
            );
            (call.op.name().to_owned(), detail)
        }
        _ => ("device".to_owned(), String::new()),
    }
}

/// Arguments of an event, without braces.
fn args(program: &Program, action: &Action, what: &str) -> String {
    let tag = program.tag(action);
    format!(
        "\"cause\":{},\"unit\":{},\"phase\":{},\"what\":{}",
        quoted(program.cause_name(tag.cause)),
        quoted(&tag.unit),
        quoted(tag.phase.name()),
        quoted(what)
    )
}

/// A JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Microseconds with three decimals.
fn us(ns: Ns) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

fn metadata(kind: &str, tid: u32, name: &str) -> String {
    let name = quoted(name);
    format!(
        "{{\"ph\":\"M\",\"pid\":0,\"tid\":{tid},\"name\":\"{kind}\",\"args\":{{\"name\":{name}}}}}"
    )
}

fn complete(name: &str, category: &str, track: &(u32, String), ts: Ns, dur: Ns) -> String {
    let mut text = String::new();
    let _ = write!(
        text,
        "{{\"ph\":\"X\",\"cat\":\"{category}\",\"name\":{},\"pid\":0,\"tid\":{},\"ts\":{},\"dur\":{},\
         \"args\":{{{}}}}}",
        quoted(name),
        track.0,
        us(ts),
        us(dur),
        track.1
    );
    text
}

/// One end of the arrow from a launch to its kernel.
fn flow(end: char, id: usize, tid: u32, ts: Ns) -> String {
    let bind = if end == 'f' { ",\"bp\":\"e\"" } else { "" };
    let ts = us(ts);
    format!(
        "{{\"ph\":\"{end}\",\"cat\":\"ac2g\",\"name\":\"ac2g\",\"id\":{id},\"pid\":0,\"tid\":{tid},\
         \"ts\":{ts}{bind}}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::HostCost;
    use crate::cost::Prices;
    use crate::engine::{EngineOptions, simulate};
    use crate::program::{HostWorkId, Kernel, KernelClass, ProgramBuilder, ThreadBuilder};

    /// One launch after 1,500 ns of host work, on a kernel of 2,001 ns.
    fn trace() -> serde_json::Value {
        let mut builder = ProgramBuilder::new();
        let stream = builder.stream("compute");
        let kernel = Kernel {
            name: "a \"quoted\" kernel".to_owned(),
            class: KernelClass::Tiny,
            mnk: [0; 3],
            flops: 0.0,
            bytes: 8.0,
            measured_ns: None,
        };
        let kernel = builder.kernel(kernel);
        let host = builder.host_work("launch/runtime", 1, 1);
        let mut main = ThreadBuilder::python("main");
        main.push(
            &mut builder,
            "test.cause",
            host,
            ActionKind::Launch { stream, kernel },
        );
        let class = builder.rank_class(vec![main.thread]);
        builder.ranks(vec![class]);
        let program = builder.finish().unwrap();
        let prices = Prices {
            host: vec![
                HostCost::default(),
                HostCost {
                    centre_ns: 1500.0,
                    log_sigma: 0.0,
                },
            ],
            kernel_ns: vec![2001],
            collective_ns: Vec::new(),
        };
        assert_eq!(host, HostWorkId(1));
        let timeline = simulate(&program, &prices, &EngineOptions::default()).unwrap();
        let text = chrome_trace(&program, &timeline.iterations[0]);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn times_have_three_decimals_and_names_are_escaped() {
        let trace = trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let kernel = events
            .iter()
            .find(|event| event["cat"] == "kernel")
            .unwrap();
        assert_eq!(kernel["name"], "a \"quoted\" kernel");
        assert_eq!(kernel["ts"].to_string(), "1.5");
        assert_eq!(kernel["dur"].to_string(), "2.001");
        assert_eq!(kernel["args"]["cause"], "test.cause");
    }

    #[test]
    fn an_arrow_joins_the_launch_to_its_kernel() {
        let trace = trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let ends: Vec<_> = events
            .iter()
            .filter(|event| event["cat"] == "ac2g")
            .collect();
        assert_eq!(ends.len(), 2);
        assert_eq!(ends[0]["id"], ends[1]["id"]);
        assert_eq!(
            (&ends[0]["tid"], &ends[1]["tid"]),
            (&0.into(), &STREAM_TID.into())
        );
    }
}
