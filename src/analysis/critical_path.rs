//! The chain of actions that decides the length of a step, walked back from its end.
//!
//! Every action started when it did because something else ended then: the action before it on its
//! thread, a hand-over, the enqueueing call, the span before it on its stream. Following that binding
//! predecessor from the end of the step to its start passes through threads, streams and ranks and
//! covers the step without gap or overlap. What is not on it can become faster without any gain.

use rustc_hash::FxHashMap;

use crate::engine::{Binding, HostSpan, Iteration, Wait};
use crate::program::{ActionKind, Program, SignalId, TagId};
use crate::units::Ns;

use super::breakdown::{action_of, device_action};

/// What a stretch of the path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// Host work on a thread.
    Host,
    /// A kernel or copy on a stream.
    Kernel,
    /// A collective on a stream.
    Collective,
    /// Nothing that the timeline names: another rank, an earlier step, the interpreter lock.
    Unknown,
}

/// A stretch of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStep {
    /// What it is.
    pub link: Link,
    /// Rank.
    pub rank: u32,
    /// Thread for host work, stream for the device.
    pub lane: u32,
    /// Why it is there.
    pub tag: TagId,
    /// Start.
    pub start_ns: Ns,
    /// End, after the start.
    pub end_ns: Ns,
}

impl PathStep {
    /// Length.
    pub fn ns(&self) -> Ns {
        self.end_ns - self.start_ns
    }
}

/// A place on the walk: which span, and up to when it matters.
#[derive(Clone, Copy)]
enum At {
    Host(usize),
    Device(usize),
}

/// Walks back from the end of rank 0's main thread. The steps come in order of time and their
/// lengths add up to the step.
pub fn critical_path(program: &Program, iteration: &Iteration) -> Vec<PathStep> {
    let Some(last) = iteration
        .host
        .iter()
        .rposition(|span| (span.rank, span.thread) == (0, 0))
    else {
        return Vec::new();
    };
    let walk = Walk::new(program, iteration);
    let mut path = Vec::new();
    let (mut place, mut at) = (At::Host(last), iteration.end_ns);
    while at > iteration.start_ns {
        let (step, next) = match place {
            At::Host(index) => walk.host(index, at),
            At::Device(index) => walk.device(index, at),
        };
        let step = PathStep {
            start_ns: step.start_ns.max(iteration.start_ns),
            ..step
        };
        at = step.start_ns;
        if step.start_ns < step.end_ns {
            path.push(step);
        }
        match next {
            Some(next) => place = next,
            None if at > iteration.start_ns => {
                path.push(PathStep {
                    link: Link::Unknown,
                    start_ns: iteration.start_ns,
                    end_ns: at,
                    ..step
                });
                break;
            }
            None => break,
        }
    }
    path.reverse();
    path
}

struct Walk<'a> {
    program: &'a Program,
    iteration: &'a Iteration,
    /// Span before each host span on its thread.
    before: Vec<Option<u32>>,
    /// Span that gives a signal on a rank.
    givers: FxHashMap<(u32, SignalId), u32>,
}

impl<'a> Walk<'a> {
    fn new(program: &'a Program, iteration: &'a Iteration) -> Self {
        let mut last: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut before = Vec::with_capacity(iteration.host.len());
        let mut givers = FxHashMap::default();
        for (index, span) in iteration.host.iter().enumerate() {
            before.push(last.insert((span.rank, span.thread), index as u32));
            if let ActionKind::Signal { signal } = action_of(program, span).kind {
                givers.insert((span.rank, signal), index as u32);
            }
        }
        Walk {
            program,
            iteration,
            before,
            givers,
        }
    }

    /// The stretch of a host span that ends at `at`, and what came before it.
    fn host(&self, index: usize, at: Ns) -> (PathStep, Option<At>) {
        let span = &self.iteration.host[index];
        let action = action_of(self.program, span);
        let step = PathStep {
            link: Link::Host,
            rank: span.rank,
            lane: span.thread,
            tag: action.tag,
            start_ns: span.start_ns.min(at),
            end_ns: at,
        };
        if at > span.work_end_ns {
            if let Some(next) = self.waited_for(span) {
                return (
                    PathStep {
                        start_ns: at,
                        ..step
                    },
                    Some(next),
                );
            }
            let unknown = PathStep {
                link: Link::Unknown,
                start_ns: span.work_end_ns,
                ..step
            };
            return (unknown, Some(At::Host(index)));
        }
        (step, self.before_host(index, span).map(At::Host))
    }

    /// What ended the wait of a host span.
    fn waited_for(&self, span: &HostSpan) -> Option<At> {
        let action = action_of(self.program, span);
        match (span.wait, action.kind) {
            (Wait::HandOver, ActionKind::Await { signal }) => self
                .givers
                .get(&(span.rank, signal))
                .map(|&giver| At::Host(giver as usize)),
            (Wait::Device, _) => span.waited_for.map(|device| At::Device(device as usize)),
            // A place in the launch queue is free when a kernel starts, so what matters is what
            // that start waited for.
            (Wait::LaunchQueue, _) => span
                .waited_for
                .and_then(|device| self.bound_by(device as usize)),
            _ => None,
        }
    }

    /// The span that let this one start: the one before it on its thread, or, after a gap, the one
    /// of the rank that ended then (it held the interpreter lock).
    fn before_host(&self, index: usize, span: &HostSpan) -> Option<usize> {
        let before = self.before[index].map(|before| before as usize);
        let host = &self.iteration.host;
        match before {
            Some(before) if host[before].end_ns == span.start_ns => Some(before),
            _ => host
                .iter()
                .position(|other| {
                    other.rank == span.rank
                        && other.thread != span.thread
                        && other.work_end_ns == span.start_ns
                        && other.work_end_ns > other.start_ns
                })
                .or(before),
        }
    }

    /// The stretch of a device span that ends at `at`, and what came before it.
    fn device(&self, index: usize, at: Ns) -> (PathStep, Option<At>) {
        let span = &self.iteration.device[index];
        let link = match (at > span.end_ns, span.collective) {
            (true, _) => Link::Unknown,
            (false, true) => Link::Collective,
            (false, false) => Link::Kernel,
        };
        let start_ns = if at > span.end_ns {
            span.end_ns
        } else {
            span.start_ns.min(at)
        };
        let step = PathStep {
            link,
            rank: span.rank,
            lane: span.stream,
            tag: device_action(self.program, span).tag,
            start_ns,
            end_ns: at,
        };
        if link == Link::Unknown {
            return (step, Some(At::Device(index)));
        }
        (step, self.bound_by(index))
    }

    fn bound_by(&self, index: usize) -> Option<At> {
        match self.iteration.device[index].binding {
            Binding::Host(host) => Some(At::Host(host as usize)),
            Binding::Device(device) => Some(At::Device(device as usize)),
            Binding::Earlier => None,
        }
    }
}
