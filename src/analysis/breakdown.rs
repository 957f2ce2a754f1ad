//! Where the time of a step goes, to the nanosecond.
//!
//! The host decides what happens, so the step is told along the host: the main thread from the
//! start of the step to its end, and while it is parked for another thread, that thread. Every
//! nanosecond falls into exactly one [`Segment`]:
//!
//! ```text
//! main      |== work ==|~~~~~~~~ parked ~~~~~~~~|= work =|~~ waits ~~|
//! autograd             |= work =|~waits~|= work=|
//! compute         [kernel]   [   kernel ]  [ all-gather ][  kernel   ]
//! parts     |   host   |  host  |device |  host | host   | exposed | device wait
//! ```
//!
//! A wait for the device is split by what the device did meanwhile, along the chain of spans that
//! ended it: time of a collective is *exposed communication*, time of a kernel *device wait*, or
//! *launch queue* if the host only had run too far ahead. A
//! collective that waited for the last rank to arrive shows that time as *late rank*. Work that
//! runs beside the host is in no part: that is what hidden means.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::engine::{Binding, DeviceSpan, HostSpan, Iteration, Wait};
use crate::program::{Action, ActionKind, Program, SignalId, TagId};
use crate::units::Ns;

/// Class prefix of the host work of launch calls.
pub(super) const LAUNCH_CLASS: &str = "launch/";

/// What a nanosecond of the step was spent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Python, dispatch, hooks.
    Host,
    /// Calls that enqueue kernels, copies and collectives of the expert dispatcher.
    Launch,
    /// The host waits while a collective moves data.
    ExposedCommunication,
    /// The host waits while a collective waits for the last rank.
    LateRank,
    /// The host waits while a kernel runs, or for work that was not enqueued yet.
    DeviceWait,
    /// The host waits because its launch queue is full of kernels.
    LaunchQueue,
    /// The host waits for another thread that does nothing of its own.
    ThreadWait,
}

impl Part {
    /// All parts in the order of the tables.
    pub const ALL: [Part; 7] = [
        Part::Host,
        Part::Launch,
        Part::ExposedCommunication,
        Part::LateRank,
        Part::DeviceWait,
        Part::LaunchQueue,
        Part::ThreadWait,
    ];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Part::Host => "host work",
            Part::Launch => "launch calls",
            Part::ExposedCommunication => "exposed communication",
            Part::LateRank => "wait for the last rank",
            Part::DeviceWait => "wait for kernels",
            Part::LaunchQueue => "launch queue full",
            Part::ThreadWait => "wait for a thread",
        }
    }

    /// Name in files.
    pub fn key(self) -> &'static str {
        match self {
            Part::Host => "host",
            Part::Launch => "launch",
            Part::ExposedCommunication => "exposed_communication",
            Part::LateRank => "late_rank",
            Part::DeviceWait => "device_wait",
            Part::LaunchQueue => "launch_queue",
            Part::ThreadWait => "thread_wait",
        }
    }
}

/// A stretch of the step that is one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub part: Part,
    /// Why the host was there. For waits on the device, why the device was busy.
    pub tag: TagId,
    /// Thread of the rank.
    pub thread: u32,
    /// Start.
    pub start_ns: Ns,
    /// End, after the start.
    pub end_ns: Ns,
}

impl Segment {
    /// Length.
    pub fn ns(&self) -> Ns {
        self.end_ns - self.start_ns
    }
}

/// The step of one rank, cut into segments.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Breakdown {
    /// Step time: the sum of all segments.
    pub step_ns: Ns,
    /// Segments in order of time, without gap or overlap.
    pub segments: Vec<Segment>,
}

impl Breakdown {
    /// Cuts the step of `rank`.
    pub fn new(program: &Program, iteration: &Iteration, rank: u32) -> Self {
        let walker = Walker::new(program, iteration, rank);
        let mut segments = Vec::new();
        walker.fill(0, iteration.start_ns, iteration.end_ns, 0, &mut segments);
        Breakdown {
            step_ns: iteration.step_ns(),
            segments,
        }
    }

    /// Time of a part.
    pub fn part_ns(&self, part: Part) -> Ns {
        self.sum(|segment| segment.part == part)
    }

    /// Time of the segments that satisfy `predicate`.
    pub fn sum(&self, predicate: impl Fn(&Segment) -> bool) -> Ns {
        self.segments
            .iter()
            .filter(|segment| predicate(segment))
            .map(Segment::ns)
            .sum()
    }

    /// Time by a key of the segment, largest first, ties by key.
    pub fn by<K: Ord + Clone>(&self, key: impl Fn(&Segment) -> Option<K>) -> Vec<(K, Ns)> {
        let mut sums: BTreeMap<K, Ns> = BTreeMap::new();
        for segment in &self.segments {
            if let Some(key) = key(segment) {
                *sums.entry(key).or_default() += segment.ns();
            }
        }
        let mut sums: Vec<(K, Ns)> = sums.into_iter().collect();
        sums.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        sums
    }
}

/// Finds its way through the spans of one rank.
struct Walker<'a> {
    program: &'a Program,
    iteration: &'a Iteration,
    /// Host spans of each thread in program order.
    threads: Vec<Vec<&'a HostSpan>>,
    /// Thread that gives each signal.
    givers: FxHashMap<SignalId, usize>,
}

impl<'a> Walker<'a> {
    fn new(program: &'a Program, iteration: &'a Iteration, rank: u32) -> Self {
        let class = program.rank_class.get(rank as usize).copied().unwrap_or(0);
        let list = &program.classes[class as usize].threads;
        let mut threads = vec![Vec::new(); list.len()];
        for span in iteration.host.iter().filter(|span| span.rank == rank) {
            threads[span.thread as usize].push(span);
        }
        let mut givers = FxHashMap::default();
        for (thread, actions) in list.iter().enumerate() {
            for action in &actions.actions {
                if let ActionKind::Signal { signal } = action.kind {
                    givers.insert(signal, thread);
                }
            }
        }
        Walker {
            program,
            iteration,
            threads,
            givers,
        }
    }

    /// Tells what `thread` did from `from` to `to`; `depth` counts the threads that wait for it.
    fn fill(&self, thread: usize, from: Ns, to: Ns, depth: usize, out: &mut Vec<Segment>) {
        let spans = &self.threads[thread];
        let first = spans.partition_point(|span| span.end_ns <= from);
        let mut at = from;
        let mut last = TagId(0);
        for span in &spans[first..] {
            if at >= to {
                break;
            }
            last = action_of(self.program, span).tag;
            self.push(
                out,
                thread,
                Part::ThreadWait,
                last,
                at,
                span.start_ns.min(to),
            );
            at = at.max(span.start_ns.min(to));
            let work = if is_launch(self.program, span) {
                Part::Launch
            } else {
                Part::Host
            };
            let work_end_ns = span.work_end_ns.clamp(at, to);
            self.push(out, thread, work, last, at, work_end_ns);
            let end_ns = span.end_ns.clamp(work_end_ns, to);
            self.wait(thread, span, work_end_ns, end_ns, depth, out);
            at = end_ns;
        }
        self.push(out, thread, Part::ThreadWait, last, at, to);
    }

    /// Tells what a thread waited for between `from` and `to`.
    fn wait(
        &self,
        thread: usize,
        span: &HostSpan,
        from: Ns,
        to: Ns,
        depth: usize,
        out: &mut Vec<Segment>,
    ) {
        if from >= to {
            return;
        }
        let action = action_of(self.program, span);
        match (span.wait, action.kind) {
            (Wait::HandOver, ActionKind::Await { signal }) => {
                // Threads that park for each other in a ring would be a deadlock; the limit is for
                // timelines that did not come from the engine.
                let giver = self.givers.get(&signal).copied();
                match giver.filter(|&giver| giver != thread && depth < self.threads.len()) {
                    Some(giver) => self.fill(giver, from, to, depth + 1, out),
                    None => self.push(out, thread, Part::ThreadWait, action.tag, from, to),
                }
            }
            (Wait::Device, _) => {
                let chain = (span.waited_for, Part::DeviceWait);
                self.device(thread, action.tag, chain, (from, to), out);
            }
            (Wait::LaunchQueue, _) => {
                // A place is free when a kernel starts, so what matters is what ran before it.
                let chain = (
                    span.waited_for.and_then(|d| self.before(d)),
                    Part::LaunchQueue,
                );
                self.device(thread, action.tag, chain, (from, to), out);
            }
            _ => self.push(out, thread, Part::ThreadWait, action.tag, from, to),
        }
    }

    /// The device span whose end let this one start.
    fn before(&self, device: u32) -> Option<u32> {
        match self.iteration.device[device as usize].binding {
            Binding::Device(before) => Some(before),
            Binding::Host(_) | Binding::Earlier => None,
        }
    }

    /// Splits a wait for the device along the chain of spans that ended it: collectives are exposed
    /// communication, all else is `part`.
    fn device(
        &self,
        thread: usize,
        tag: TagId,
        (last, part): (Option<u32>, Part),
        (from, to): (Ns, Ns),
        out: &mut Vec<Segment>,
    ) {
        let mut reversed: Vec<Segment> = Vec::new();
        let mut put = |part, tag, start_ns: Ns, end_ns: Ns| {
            if start_ns < end_ns {
                reversed.push(Segment {
                    part,
                    tag,
                    thread: thread as u32,
                    start_ns,
                    end_ns,
                });
            }
        };
        let (mut at, mut next) = (to, last);
        while let Some(index) = next.filter(|_| at > from) {
            let span = &self.iteration.device[index as usize];
            let why = device_action(self.program, span).tag;
            // Between the end of the chain's next span and what it waited for lies a rendezvous.
            put(Part::LateRank, why, span.end_ns.clamp(from, at), at);
            at = at.min(span.end_ns.max(from));
            let kind = if span.collective {
                Part::ExposedCommunication
            } else {
                part
            };
            let start_ns = span.start_ns.clamp(from, at);
            put(kind, why, start_ns, at);
            at = start_ns;
            next = self.before(index);
        }
        put(part, tag, from, at);
        out.extend(reversed.into_iter().rev());
    }

    fn push(
        &self,
        out: &mut Vec<Segment>,
        thread: usize,
        part: Part,
        tag: TagId,
        start_ns: Ns,
        end_ns: Ns,
    ) {
        if start_ns < end_ns {
            out.push(Segment {
                part,
                tag,
                thread: thread as u32,
                start_ns,
                end_ns,
            });
        }
    }
}

/// The action of a host span.
pub(super) fn action_of<'a>(program: &'a Program, span: &HostSpan) -> &'a Action {
    action_at(program, span.rank, span.thread, span.action)
}

/// The action that enqueued a device span.
pub(super) fn device_action<'a>(program: &'a Program, span: &DeviceSpan) -> &'a Action {
    action_at(program, span.rank, span.thread, span.action)
}

fn action_at(program: &Program, rank: u32, thread: u32, action: u32) -> &Action {
    let class = program.rank_class.get(rank as usize).copied().unwrap_or(0);
    &program.classes[class as usize].threads[thread as usize].actions[action as usize]
}

fn is_launch(program: &Program, span: &HostSpan) -> bool {
    let action = action_of(program, span);
    program.host_work(action).class.starts_with(LAUNCH_CLASS)
}
