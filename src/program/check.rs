//! Invariants of a [`Program`], checked once when it is built.

use thiserror::Error;

use super::{Action, ActionKind, Program};

/// A Program that cannot be simulated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// An action names something that does not exist.
    #[error("rank class {class}, thread `{thread}`, action {index}: {what} does not exist")]
    Dangling {
        /// Rank class.
        class: usize,
        /// Thread name.
        thread: String,
        /// Index of the action on its thread.
        index: usize,
        /// What is named.
        what: String,
    },
    /// A signal is awaited but nobody gives it, or it is given twice.
    #[error(
        "rank class {class}: signal {signal} is given {given} times and awaited {awaited} times; each hand-over is given exactly once"
    )]
    Signal {
        /// Rank class.
        class: usize,
        /// The signal.
        signal: u32,
        /// How often it is given.
        given: usize,
        /// How often it is awaited.
        awaited: usize,
    },
    /// A rank without a program.
    #[error("rank {rank} has program class {class}, but there are only {classes}")]
    RankClass {
        /// Rank.
        rank: usize,
        /// Its class.
        class: u32,
        /// Number of classes.
        classes: usize,
    },
    /// Two groups of a communicator share a rank.
    #[error("communicator `{comm}`: rank {rank} is in two groups or outside the world")]
    Group {
        /// Communicator name.
        comm: String,
        /// The rank.
        rank: u32,
    },
}

/// Checks every invariant; see the variants of [`ProgramError`].
pub(super) fn check(program: &Program) -> Result<(), ProgramError> {
    for (rank, &class) in program.rank_class.iter().enumerate() {
        if class as usize >= program.classes.len() {
            return Err(ProgramError::RankClass {
                rank,
                class,
                classes: program.classes.len(),
            });
        }
    }
    for comm in &program.communicators {
        let mut seen = vec![false; program.world_size()];
        for &rank in comm.groups.iter().flatten() {
            match seen.get_mut(rank as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    return Err(ProgramError::Group {
                        comm: comm.name.clone(),
                        rank,
                    });
                }
            }
        }
    }
    for (class, rank_program) in program.classes.iter().enumerate() {
        let mut given = vec![0usize; program.signal_count as usize];
        let mut awaited = vec![0usize; program.signal_count as usize];
        for thread in &rank_program.threads {
            for (index, action) in thread.actions.iter().enumerate() {
                if let Some(what) = dangling(program, action) {
                    let thread = thread.name.clone();
                    return Err(ProgramError::Dangling {
                        class,
                        thread,
                        index,
                        what,
                    });
                }
                match action.kind {
                    ActionKind::Signal { signal } => given[signal.index()] += 1,
                    ActionKind::Await { signal } => awaited[signal.index()] += 1,
                    _ => {}
                }
            }
        }
        for (signal, (&given, &awaited)) in given.iter().zip(&awaited).enumerate() {
            if given > 1 || (awaited > 0 && given == 0) {
                let signal = signal as u32;
                return Err(ProgramError::Signal {
                    class,
                    signal,
                    given,
                    awaited,
                });
            }
        }
    }
    Ok(())
}

/// What the action names that does not exist, if anything.
fn dangling(program: &Program, action: &Action) -> Option<String> {
    let missing =
        |what: &str, id: u32, len: usize| (id as usize >= len).then(|| format!("{what} {id}"));
    let stream = |id: super::StreamId| missing("stream", id.0, program.streams.len());
    let event = |id: super::EventId| missing("event", id.0, program.event_count as usize);
    missing("tag", action.tag.0, program.tags.len())
        .or_else(|| missing("host work", action.host.0, program.host_works.len()))
        .or_else(|| match action.kind {
            ActionKind::Host | ActionKind::HostWaitDevice => None,
            ActionKind::Launch { stream: id, kernel } => {
                stream(id).or_else(|| missing("kernel", kernel.0, program.kernels.len()))
            }
            ActionKind::Collective {
                comm,
                stream: id,
                call,
            } => stream(id)
                .or_else(|| missing("communicator", comm.0, program.communicators.len()))
                .or_else(|| missing("collective", call.0, program.collectives.len())),
            ActionKind::EventRecord {
                event: id,
                stream: on,
            }
            | ActionKind::StreamWait {
                event: id,
                stream: on,
            } => event(id).or_else(|| stream(on)),
            ActionKind::HostWaitEvent { event: id } => event(id),
            ActionKind::HostWaitStream { stream: id } => stream(id),
            ActionKind::Alloc { block } | ActionKind::Free { block } => {
                missing("block", block.0, program.blocks.len())
            }
            ActionKind::Signal { signal } | ActionKind::Await { signal } => {
                missing("signal", signal.0, program.signal_count as usize)
            }
        })
}
