//! The static pass: one representative rank, every time known as soon as its action is reached.

use thiserror::Error;

use crate::cost::Prices;
use crate::program::{Action, ActionKind, CommId, HostWorkId, Program};
use crate::units::Ns;

use super::jitter::{JitterOptions, action_factor, step_factor};
use super::timeline::{Binding, DeviceSpan, HostSpan, Iteration, Timeline, Wait};

/// How to run a Program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineOptions {
    /// Steps in a row; at least 1.
    pub iterations: u32,
    /// Seed of all draws.
    pub seed: u64,
    /// Kernels that may be enqueued and not started.
    pub launch_queue_depth: u32,
    /// Spread; `None` for none.
    pub jitter: Option<JitterOptions>,
    /// Whether all iterations keep their spans, or the last one only.
    pub record_all: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            iterations: 1,
            seed: 0,
            launch_queue_depth: 1024,
            jitter: None,
            record_all: false,
        }
    }
}

/// A Program that cannot run to its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EngineError {
    /// All threads wait for each other.
    #[error(
        "deadlock in iteration {iteration}: thread `{thread}` waits at action {action} \
         ({unit}, {cause}) for a hand-over that never comes"
    )]
    Deadlock {
        /// Iteration.
        iteration: u32,
        /// A waiting thread.
        thread: String,
        /// Its action.
        action: usize,
        /// Unit of the action.
        unit: String,
        /// Cause of the action.
        cause: String,
    },
}

/// End of something on the device, and the span that ended then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Mark {
    ns: Ns,
    span: Option<u32>,
}

impl Mark {
    fn later(self, other: Mark) -> Mark {
        if other.ns > self.ns { other } else { self }
    }
}

/// State of the rank across iterations.
struct State<'a> {
    program: &'a Program,
    prices: &'a Prices,
    options: &'a EngineOptions,
    thread_ns: Vec<Ns>,
    streams: Vec<Mark>,
    events: Vec<Mark>,
    communicators: Vec<Mark>,
    /// Start times of the last launches, as a ring.
    starts: Vec<Mark>,
    launches: usize,
    signals: Vec<Option<Ns>>,
    /// Actions with host work that each thread has run in this step: the keys of their draws.
    draws: Vec<u64>,
    host: Vec<HostSpan>,
    device: Vec<DeviceSpan>,
    iteration: u32,
    factor: f64,
}

/// Runs `program` for the asked number of iterations. All ranks run the program of rank 0's class
/// in lockstep, so a collective starts when its own rank has arrived.
///
/// # Errors
/// [`EngineError::Deadlock`] if threads wait for each other for ever.
pub fn simulate(
    program: &Program,
    prices: &Prices,
    options: &EngineOptions,
) -> Result<Timeline, EngineError> {
    let threads = program.classes[0].threads.len();
    let mut state = State {
        program,
        prices,
        options,
        thread_ns: vec![0; threads],
        streams: vec![Mark::default(); program.streams.len()],
        events: vec![Mark::default(); program.event_count as usize],
        communicators: vec![Mark::default(); program.communicators.len()],
        starts: vec![Mark::default(); options.launch_queue_depth.max(1) as usize],
        launches: 0,
        signals: Vec::new(),
        draws: vec![0; threads],
        host: Vec::new(),
        device: Vec::new(),
        iteration: 0,
        factor: 1.0,
    };
    let mut timeline = Timeline::default();
    for iteration in 0..options.iterations.max(1) {
        let last = iteration + 1 == options.iterations.max(1);
        timeline
            .iterations
            .push(state.step(iteration, last || options.record_all)?);
    }
    Ok(timeline)
}

impl State<'_> {
    fn step(&mut self, iteration: u32, record: bool) -> Result<Iteration, EngineError> {
        self.iteration = iteration;
        self.signals = vec![None; self.program.signal_count as usize];
        self.draws.fill(0);
        self.host.clear();
        self.device.clear();
        // Spans of earlier iterations are gone: their times stay, their indices do not.
        let marks = self.streams.iter_mut().chain(&mut self.events);
        marks
            .chain(&mut self.communicators)
            .chain(&mut self.starts)
            .for_each(|m| m.span = None);
        self.factor = self.options.jitter.as_ref().map_or(1.0, |jitter| {
            step_factor(jitter, self.options.seed, u64::from(iteration))
        });
        let start_ns = self.thread_ns.first().copied().unwrap_or(0);
        let program = self.program;
        let threads = &program.classes[0].threads;
        let mut position = vec![0; threads.len()];
        loop {
            let mut moved = false;
            for (thread, list) in threads.iter().enumerate() {
                while let Some(action) = list.actions.get(position[thread]) {
                    if !self.run(thread, position[thread], action) {
                        break;
                    }
                    position[thread] += 1;
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        if let Some(thread) = (0..threads.len()).find(|&t| position[t] < threads[t].actions.len()) {
            return Err(self.deadlock(thread, position[thread]));
        }
        let end_ns = self.thread_ns.first().copied().unwrap_or(0);
        let (mut host, mut device) = (Vec::new(), Vec::new());
        if record {
            std::mem::swap(&mut host, &mut self.host);
            std::mem::swap(&mut device, &mut self.device);
        }
        Ok(Iteration {
            start_ns,
            end_ns,
            host,
            device,
        })
    }

    fn deadlock(&self, thread: usize, action: usize) -> EngineError {
        let list = &self.program.classes[0].threads[thread];
        let tag = self.program.tag(&list.actions[action]);
        EngineError::Deadlock {
            iteration: self.iteration,
            thread: list.name.clone(),
            action,
            unit: tag.unit.clone(),
            cause: self.program.cause_name(tag.cause).to_owned(),
        }
    }

    /// Host time of an action's work. Actions without host work draw nothing and count for nothing,
    /// so that one more of them leaves the draws of the others as they were.
    fn work_ns(&mut self, thread: usize, action: &Action) -> Ns {
        if action.host == HostWorkId(0) {
            return 0;
        }
        let key = (thread as u64) << 32 | self.draws[thread];
        self.draws[thread] += 1;
        let cost = self.prices.host[action.host.index()];
        let Some(jitter) = &self.options.jitter else {
            return cost.centre_ns.round() as Ns;
        };
        let own = if jitter.actions {
            action_factor(
                cost.log_sigma,
                self.options.seed,
                u64::from(self.iteration),
                key,
            )
        } else {
            1.0
        };
        (cost.centre_ns * own * self.factor).round() as Ns
    }

    /// Runs one action; `false` if it has to wait for another thread.
    fn run(&mut self, thread: usize, index: usize, action: &Action) -> bool {
        let start_ns = self.thread_ns[thread];
        if let ActionKind::Await { signal } = action.kind {
            let Some(given_ns) = self.signals[signal.index()] else {
                return false;
            };
            let end_ns = start_ns.max(given_ns);
            self.push_host(
                thread,
                index,
                (start_ns, start_ns, end_ns),
                Wait::HandOver,
                None,
            );
            return true;
        }
        let work_end_ns = start_ns + self.work_ns(thread, action);
        let mut end = Mark {
            ns: work_end_ns,
            span: None,
        };
        let mut wait = Wait::None;
        match action.kind {
            ActionKind::Launch { stream, kernel } => {
                let slot = self.launches % self.starts.len();
                if self.starts[slot].ns > end.ns {
                    end = self.starts[slot];
                    wait = Wait::LaunchQueue;
                }
                let duration_ns = self.prices.kernel_ns[kernel.index()];
                let at = (thread, index, stream.index());
                let started = self.enqueue(at, end.ns, duration_ns, None);
                self.starts[slot] = started;
                self.launches += 1;
            }
            ActionKind::Collective { comm, stream, call } => {
                let duration_ns = self.collective_ns(comm, call.index());
                self.enqueue(
                    (thread, index, stream.index()),
                    end.ns,
                    duration_ns,
                    Some(comm),
                );
            }
            ActionKind::EventRecord { event, stream } => {
                let tail = self.streams[stream.index()];
                self.events[event.index()] = tail;
            }
            ActionKind::StreamWait { event, stream } => {
                let tail = self.streams[stream.index()];
                self.streams[stream.index()] = tail.later(self.events[event.index()]);
            }
            ActionKind::HostWaitEvent { event } => {
                (end, wait) = waited(end, self.events[event.index()]);
            }
            ActionKind::HostWaitStream { stream } => {
                (end, wait) = waited(end, self.streams[stream.index()]);
            }
            ActionKind::HostWaitDevice => {
                let tail = self
                    .streams
                    .iter()
                    .fold(Mark::default(), |a, &b| a.later(b));
                (end, wait) = waited(end, tail);
            }
            ActionKind::Signal { signal } => self.signals[signal.index()] = Some(end.ns),
            ActionKind::Host
            | ActionKind::Await { .. }
            | ActionKind::Alloc { .. }
            | ActionKind::Free { .. } => {}
        }
        self.push_host(
            thread,
            index,
            (start_ns, work_end_ns, end.ns),
            wait,
            end.span,
        );
        true
    }

    fn collective_ns(&self, comm: CommId, call: usize) -> Ns {
        let groups = &self.prices.collective_ns[call][comm.index()];
        groups.first().copied().unwrap_or(0)
    }

    /// Puts a span at the tail of a stream; returns its start.
    fn enqueue(
        &mut self,
        (thread, index, stream): (usize, usize, usize),
        host_ns: Ns,
        duration_ns: Ns,
        comm: Option<CommId>,
    ) -> Mark {
        let mut ready = self.streams[stream];
        if let Some(comm) = comm {
            ready = ready.later(self.communicators[comm.index()]);
        }
        let start_ns = ready.ns.max(host_ns);
        let binding = match ready.span {
            _ if host_ns >= ready.ns => Binding::Host(self.host.len() as u32),
            Some(span) => Binding::Device(span),
            None => Binding::Earlier,
        };
        let span = self.device.len() as u32;
        self.device.push(DeviceSpan {
            rank: 0,
            stream: stream as u32,
            thread: thread as u32,
            action: index as u32,
            enqueued_ns: host_ns,
            start_ns,
            end_ns: start_ns + duration_ns,
            collective: comm.is_some(),
            binding,
        });
        let tail = Mark {
            ns: start_ns + duration_ns,
            span: Some(span),
        };
        self.streams[stream] = tail;
        if let Some(comm) = comm {
            self.communicators[comm.index()] = tail;
        }
        Mark {
            ns: start_ns,
            span: Some(span),
        }
    }

    fn push_host(
        &mut self,
        thread: usize,
        index: usize,
        (start_ns, work_end_ns, end_ns): (Ns, Ns, Ns),
        wait: Wait,
        waited_for: Option<u32>,
    ) {
        self.thread_ns[thread] = end_ns;
        let wait = if end_ns > work_end_ns {
            wait
        } else {
            Wait::None
        };
        self.host.push(HostSpan {
            rank: 0,
            thread: thread as u32,
            action: index as u32,
            start_ns,
            work_end_ns,
            end_ns,
            wait,
            waited_for: if wait == Wait::None { None } else { waited_for },
        });
    }
}

/// A host that waits from `end` for `tail`.
fn waited(end: Mark, tail: Mark) -> (Mark, Wait) {
    if tail.ns > end.ns {
        (tail, Wait::Device)
    } else {
        (end, Wait::None)
    }
}
