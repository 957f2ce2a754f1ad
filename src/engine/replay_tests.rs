//! The ordering contract as closed forms on tiny Programs, and as invariants on random ones.

use proptest::prelude::*;

use crate::cost::{CostModel, HostCost, Prices, price};
use crate::program::{
    ActionKind, Collective, CollectiveCall, CommId, Communicator, EventId, HostWork, HostWorkId,
    Kernel, KernelClass, Phase, Program, ProgramBuilder, SignalId, StreamId, ThreadBuilder,
};
use crate::units::Ns;

use super::{
    Binding, EngineError, EngineOptions, Iteration, JitterOptions, Timeline, Wait, simulate,
};

/// Host time of every launch below.
const HOST: Ns = 10;

/// Passes the durations in the descriptions through; host work spreads by `log_sigma`.
struct Given {
    log_sigma: f64,
}

impl CostModel for Given {
    fn host(&self, work: &HostWork) -> HostCost {
        HostCost {
            centre_ns: work.measured_ns.unwrap_or(0) as f64,
            log_sigma: self.log_sigma,
        }
    }
    fn kernel_ns(&self, kernel: &Kernel) -> Ns {
        kernel.measured_ns.unwrap_or(0)
    }
    fn collective_ns(&self, call: &CollectiveCall, _: &Communicator, _: &[u32]) -> Ns {
        call.measured_ns.unwrap_or(0)
    }
}

/// A Program of one rank with two threads, three streams and two communicators.
struct Small {
    builder: ProgramBuilder,
    threads: [ThreadBuilder; 2],
    comms: [CommId; 2],
}

impl Small {
    fn new() -> Self {
        let mut builder = ProgramBuilder::new();
        for name in ["compute", "gather", "reduce"] {
            builder.stream(name);
        }
        let comms = ["inner", "outer"].map(|name| builder.communicator(name, vec![vec![0]]));
        let threads = ["main", "autograd"].map(ThreadBuilder::python);
        Small {
            builder,
            threads,
            comms,
        }
    }

    fn push(&mut self, thread: usize, host_ns: Ns, kind: ActionKind) -> &mut Self {
        let host = match host_ns {
            0 => HostWorkId(0),
            ns => self.builder.measured_host_work("work", 0, ns),
        };
        self.threads[thread].phase = Phase::Forward(0);
        self.threads[thread].push(&mut self.builder, "test", host, kind);
        self
    }

    fn host(&mut self, thread: usize, ns: Ns) -> &mut Self {
        self.push(thread, ns, ActionKind::Host)
    }

    fn launch(&mut self, stream: u32, device_ns: Ns) -> &mut Self {
        let kernel = self.builder.kernel(Kernel {
            name: "kernel".to_owned(),
            class: KernelClass::Elementwise,
            mnk: [0; 3],
            flops: 0.0,
            bytes: 0.0,
            measured_ns: Some(device_ns),
        });
        let stream = StreamId(stream);
        self.push(0, HOST, ActionKind::Launch { stream, kernel })
    }

    fn collective(&mut self, comm: usize, stream: u32, device_ns: Ns) -> &mut Self {
        let call = self.builder.collective(CollectiveCall {
            op: Collective::AllGather,
            bytes: 0,
            coalesced: 1,
            imbalance: 1.0,
            measured_ns: Some(device_ns),
        });
        let (comm, stream) = (self.comms[comm], StreamId(stream));
        self.push(0, HOST, ActionKind::Collective { comm, stream, call })
    }

    fn record(&mut self, event: EventId, stream: u32) -> &mut Self {
        let stream = StreamId(stream);
        self.push(0, 0, ActionKind::EventRecord { event, stream })
    }

    fn wait(&mut self, event: EventId, stream: u32) -> &mut Self {
        let stream = StreamId(stream);
        self.push(0, 0, ActionKind::StreamWait { event, stream })
    }

    fn signal(&mut self, thread: usize, signal: SignalId) -> &mut Self {
        self.push(thread, 0, ActionKind::Signal { signal })
    }

    fn await_signal(&mut self, thread: usize, signal: SignalId) -> &mut Self {
        self.push(thread, 0, ActionKind::Await { signal })
    }

    fn finish(self) -> Program {
        let Small {
            mut builder,
            threads,
            ..
        } = self;
        let class = builder.rank_class(threads.map(|thread| thread.thread).into());
        builder.ranks(vec![class]);
        builder.finish().expect("a sound program")
    }

    /// One recorded iteration without jitter.
    fn run(self) -> Iteration {
        let mut timeline = run(&self.finish(), &options(1));
        timeline.iterations.pop().expect("one iteration")
    }
}

fn options(iterations: u32) -> EngineOptions {
    EngineOptions {
        iterations,
        record_all: true,
        ..Default::default()
    }
}

fn run(program: &Program, options: &EngineOptions) -> Timeline {
    simulate(program, &prices(program, 0.0), options).expect("runs to its end")
}

fn prices(program: &Program, log_sigma: f64) -> Prices {
    price(program, &Given { log_sigma })
}

fn device(iteration: &Iteration) -> Vec<(Ns, Ns)> {
    iteration
        .device
        .iter()
        .map(|span| (span.start_ns, span.end_ns))
        .collect()
}

#[test]
fn the_host_runs_ahead_of_the_device() {
    let mut small = Small::new();
    small.launch(0, 100).launch(0, 100).host(0, 5);
    let iteration = small.run();
    assert_eq!(device(&iteration), [(10, 110), (110, 210)]);
    assert_eq!(iteration.step_ns(), 25, "nobody waits for the device");
    assert_eq!(iteration.device[0].binding, Binding::Host(0));
    assert_eq!(iteration.device[1].binding, Binding::Device(0));
    assert_eq!(iteration.device[1].enqueued_ns, 20);
}

#[test]
fn a_slow_host_leaves_the_device_idle_between_kernels() {
    let mut small = Small::new();
    small.launch(0, 3).launch(0, 3);
    let iteration = small.run();
    assert_eq!(device(&iteration), [(10, 13), (20, 23)]);
    assert_eq!(iteration.device[1].binding, Binding::Host(1));
}

#[test]
fn streams_overlap_and_each_is_first_in_first_out() {
    let mut small = Small::new();
    small.launch(0, 100).launch(1, 100).launch(0, 1);
    assert_eq!(device(&small.run()), [(10, 110), (20, 120), (110, 111)]);
}

#[test]
fn a_stream_waits_for_what_was_enqueued_before_the_record_and_for_nothing_later() {
    let mut small = Small::new();
    let event = small.builder.event();
    small.launch(1, 100).record(event, 1).launch(1, 1000);
    small.launch(0, 5).wait(event, 0).launch(0, 7);
    let iteration = small.run();
    // The launch before the wait is free; the one after it starts when the first kernel ends.
    assert_eq!(
        device(&iteration),
        [(10, 110), (110, 1110), (30, 35), (110, 117)]
    );
    assert_eq!(iteration.device[3].binding, Binding::Device(0));
}

#[test]
fn an_event_that_was_never_recorded_holds_nothing_up() {
    let mut small = Small::new();
    let event = small.builder.event();
    small.wait(event, 0).launch(0, 7);
    small.push(0, 1, ActionKind::HostWaitEvent { event });
    let iteration = small.run();
    assert_eq!(device(&iteration), [(10, 17)]);
    assert_eq!(iteration.step_ns(), 11);
}

#[test]
fn an_event_of_an_earlier_iteration_counts_until_this_one_records_again() {
    let mut small = Small::new();
    let event = small.builder.event();
    small.wait(event, 0).launch(0, 7);
    small.launch(1, 1000).record(event, 1);
    let timeline = run(&small.finish(), &options(2));
    assert_eq!(device(&timeline.iterations[0]), [(10, 17), (20, 1020)]);
    let second = &timeline.iterations[1];
    assert_eq!(device(second), [(1020, 1027), (1020, 2020)]);
    assert_eq!(second.device[0].binding, Binding::Earlier);
}

#[test]
fn a_full_launch_queue_blocks_the_host_until_a_kernel_starts() {
    let mut small = Small::new();
    for _ in 0..5 {
        small.launch(0, 100);
    }
    let program = small.finish();
    let two = EngineOptions {
        launch_queue_depth: 2,
        ..options(1)
    };
    let iteration = run(&program, &two).iterations.remove(0);
    let ends: Vec<Ns> = iteration.host.iter().map(|span| span.end_ns).collect();
    // Kernels start at 10, 110, 210, ...; launch n returns when kernel n - 2 has started.
    assert_eq!(ends, [10, 20, 30, 110, 210]);
    let waits: Vec<Wait> = iteration.host.iter().map(|span| span.wait).collect();
    let (none, full) = (Wait::None, Wait::LaunchQueue);
    assert_eq!(waits, [none, none, none, full, full]);
    assert_eq!(iteration.host[3].waited_for, Some(1));
    let deep = run(&program, &options(1)).iterations.remove(0);
    assert_eq!(deep.step_ns(), 50);
    assert_eq!(
        device(&deep),
        device(&iteration),
        "the device is busy either way"
    );
}

#[test]
fn the_host_waits_for_an_event_a_stream_or_the_device() {
    let wait = |kind: fn(EventId) -> ActionKind| {
        let mut small = Small::new();
        let event = small.builder.event();
        small.launch(0, 100).record(event, 0).launch(0, 100);
        small.launch(1, 1000).push(0, 5, kind(event));
        let iteration = small.run();
        let last = *iteration.host.last().expect("a host span");
        assert_eq!(last.work_end_ns, 35);
        assert_eq!(last.wait, Wait::Device);
        (iteration.step_ns(), last.waited_for)
    };
    assert_eq!(
        wait(|event| ActionKind::HostWaitEvent { event }),
        (110, Some(0))
    );
    let stream = |_| ActionKind::HostWaitStream {
        stream: StreamId(0),
    };
    assert_eq!(wait(stream), (210, Some(1)));
    assert_eq!(wait(|_| ActionKind::HostWaitDevice), (1030, Some(2)));
}

#[test]
fn a_wait_for_what_is_done_costs_its_host_work_only() {
    let mut small = Small::new();
    small.launch(0, 3).host(0, 100);
    small.push(0, 5, ActionKind::HostWaitDevice);
    let iteration = small.run();
    assert_eq!(iteration.step_ns(), 115);
    assert_eq!(iteration.host[2].wait, Wait::None);
    assert_eq!(iteration.host[2].waited_for, None);
}

#[test]
fn threads_hand_over_and_the_step_ends_with_the_main_thread() {
    let mut small = Small::new();
    let (start, done) = (small.builder.signal(), small.builder.signal());
    small
        .host(0, 10)
        .signal(0, start)
        .await_signal(0, done)
        .host(0, 5);
    small
        .await_signal(1, start)
        .host(1, 20)
        .signal(1, done)
        .host(1, 100);
    let timeline = run(&small.finish(), &options(2));
    // 10 on main, 20 on autograd, 5 on main.
    assert_eq!(timeline.iterations[0].step_ns(), 35);
    // Autograd is busy until 130, so it takes over late: 130 + 20 + 5.
    assert_eq!(timeline.iterations[1].end_ns, 155);
    let waits = timeline.iterations[0]
        .host
        .iter()
        .filter(|span| span.wait == Wait::HandOver);
    let waited: Vec<(u32, Ns)> = waits.map(|s| (s.thread, s.end_ns - s.start_ns)).collect();
    assert_eq!(waited, [(1, 10), (0, 20)]);
}

#[test]
fn a_deadlock_names_thread_action_unit_and_cause() {
    let mut small = Small::new();
    let (a, b) = (small.builder.signal(), small.builder.signal());
    small.host(0, 10).await_signal(0, a).signal(0, b);
    small.await_signal(1, b).signal(1, a);
    let program = small.finish();
    let error = simulate(&program, &prices(&program, 0.0), &options(1)).expect_err("a deadlock");
    let expected = EngineError::Deadlock {
        iteration: 0,
        thread: "main".to_owned(),
        action: 1,
        unit: "root".to_owned(),
        cause: "test".to_owned(),
    };
    assert_eq!(error, expected);
    assert!(
        error
            .to_string()
            .contains("thread `main` waits at action 1 (root, test)")
    );
}

#[test]
fn collectives_of_one_communicator_take_turns_whatever_their_streams() {
    let mut small = Small::new();
    small
        .collective(0, 1, 100)
        .collective(0, 2, 100)
        .collective(1, 0, 100);
    let iteration = small.run();
    assert_eq!(device(&iteration), [(10, 110), (110, 210), (30, 130)]);
    assert_eq!(iteration.device[1].binding, Binding::Device(0));
    assert!(iteration.device.iter().all(|span| span.collective));
}

#[test]
fn only_the_last_iteration_keeps_its_spans_unless_all_are_asked_for() {
    let mut small = Small::new();
    small.launch(0, 3);
    let program = small.finish();
    let last_only = EngineOptions {
        record_all: false,
        ..options(3)
    };
    let kept = |options| {
        let timeline = run(&program, options);
        timeline
            .iterations
            .iter()
            .map(|i| i.host.len())
            .collect::<Vec<_>>()
    };
    assert_eq!(kept(&last_only), [0, 0, 1]);
    assert_eq!(kept(&options(3)), [1, 1, 1]);
}

fn noisy(seed: u64, step_log_sigma: f64) -> EngineOptions {
    EngineOptions {
        seed,
        jitter: Some(JitterOptions {
            step_log_sigma,
            actions: true,
        }),
        ..options(4)
    }
}

fn works(program: &Program, log_sigma: f64, options: &EngineOptions) -> Vec<Vec<Ns>> {
    let timeline = simulate(program, &prices(program, log_sigma), options).expect("runs");
    let of = |iteration: &Iteration| {
        let spans = iteration
            .host
            .iter()
            .filter(|span| span.work_end_ns > span.start_ns);
        spans.map(|span| span.work_end_ns - span.start_ns).collect()
    };
    timeline.iterations.iter().map(of).collect()
}

fn loop_of(costs: &[Ns]) -> Small {
    let mut small = Small::new();
    for &ns in costs {
        small.host(0, ns);
    }
    small
}

#[test]
fn the_same_seed_gives_the_same_timeline_and_another_seed_another() {
    let program = loop_of(&[1_000_000; 50]).finish();
    let prices = prices(&program, 0.3);
    let run = |seed| simulate(&program, &prices, &noisy(seed, 0.02)).expect("runs");
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
    let steps = run(7).step_ns();
    assert_ne!(steps[0], steps[1], "every iteration has draws of its own");
}

#[test]
fn an_edit_leaves_the_draws_of_the_other_actions_as_they_were() {
    let base = works(&loop_of(&[1_000_000; 6]).finish(), 0.3, &noisy(7, 0.02));
    // Another cost for the third action.
    let mut costs = [1_000_000; 6];
    costs[2] = 2_000_000;
    let edited = works(&loop_of(&costs).finish(), 0.3, &noisy(7, 0.02));
    for (base, edited) in base.iter().zip(&edited) {
        let twice = edited[2].abs_diff(2 * base[2]);
        assert!(twice <= 1, "the same factor on twice the cost");
        assert_eq!(
            [&base[..2], &base[3..]].concat(),
            [&edited[..2], &edited[3..]].concat()
        );
    }
    // One more action without host work.
    let mut small = Small::new();
    let event = small.builder.event();
    small.record(event, 0);
    for _ in 0..6 {
        small.host(0, 1_000_000);
    }
    assert_eq!(works(&small.finish(), 0.3, &noisy(7, 0.02)), base);
}

#[test]
fn jitter_of_actions_has_mean_one_and_that_of_steps_median_one() {
    let work = works(&loop_of(&[1_000_000; 5000]).finish(), 0.3, &noisy(1, 0.0));
    let all: Vec<f64> = work.iter().flatten().map(|&ns| ns as f64 / 1e6).collect();
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    // The standard error of the mean of 20,000 draws is 0.0022.
    assert!((mean - 1.0).abs() < 0.01, "{mean}");
    let many = EngineOptions {
        iterations: 2001,
        ..noisy(1, 0.1)
    };
    let program = loop_of(&[1_000_000]).finish();
    let mut steps: Vec<Ns> = works(&program, 0.0, &many).concat();
    steps.sort_unstable();
    // The standard error of the median of 2001 draws is 0.0028.
    let median = steps[1000] as f64 / 1e6;
    assert!((median - 1.0).abs() < 0.012, "{median}");
    let logs: Vec<f64> = steps
        .iter()
        .map(|&ns| (ns as f64 / 1e6).ln().powi(2))
        .collect();
    let sigma = (logs.iter().sum::<f64>() / logs.len() as f64).sqrt();
    assert!((sigma - 0.1).abs() < 0.006, "{sigma}");
}

/// One step of a random Program.
#[derive(Debug, Clone, Copy)]
enum Op {
    Host(Ns),
    Launch(u32, Ns),
    Collective(usize, u32, Ns),
    Record(usize, u32),
    Wait(usize, u32),
    HostWaitEvent(usize),
    HostWaitStream(u32),
    HostWaitDevice,
}

fn op() -> impl Strategy<Value = Op> {
    let (ns, stream, event) = (0u64..300, 0u32..3, 0usize..3);
    prop_oneof![
        ns.clone().prop_map(Op::Host),
        (stream.clone(), ns.clone()).prop_map(|(s, ns)| Op::Launch(s, ns)),
        (0usize..2, stream.clone(), ns).prop_map(|(c, s, ns)| Op::Collective(c, s, ns)),
        (event.clone(), stream.clone()).prop_map(|(e, s)| Op::Record(e, s)),
        (event.clone(), stream.clone()).prop_map(|(e, s)| Op::Wait(e, s)),
        event.prop_map(Op::HostWaitEvent),
        stream.prop_map(Op::HostWaitStream),
        Just(Op::HostWaitDevice),
    ]
}

fn random_program(ops: &[Op]) -> Program {
    let mut small = Small::new();
    let events: [EventId; 3] = std::array::from_fn(|_| small.builder.event());
    for &op in ops {
        match op {
            Op::Host(ns) => small.host(0, ns),
            Op::Launch(stream, ns) => small.launch(stream, ns),
            Op::Collective(comm, stream, ns) => small.collective(comm, stream, ns),
            Op::Record(event, stream) => small.record(events[event], stream),
            Op::Wait(event, stream) => small.wait(events[event], stream),
            Op::HostWaitEvent(event) => {
                let event = events[event];
                small.push(0, 1, ActionKind::HostWaitEvent { event })
            }
            Op::HostWaitStream(stream) => {
                let stream = StreamId(stream);
                small.push(0, 1, ActionKind::HostWaitStream { stream })
            }
            Op::HostWaitDevice => small.push(0, 1, ActionKind::HostWaitDevice),
        };
    }
    small.finish()
}

proptest! {
    #[test]
    fn any_program_keeps_the_ordering_contract(
        ops in proptest::collection::vec(op(), 0..60),
        depth in 1u32..5,
    ) {
        let program = random_program(&ops);
        let options = EngineOptions { launch_queue_depth: depth, ..options(3) };
        let timeline = run(&program, &options);
        let mut clock = 0;
        let mut tails = [0; 3];
        let mut comms = [0; 2];
        let mut starts: Vec<Ns> = Vec::new();
        for iteration in &timeline.iterations {
            prop_assert_eq!(iteration.start_ns, clock);
            let mut enqueued = iteration.device.iter().enumerate();
            for span in &iteration.host {
                // The thread is never idle and never goes back.
                prop_assert_eq!(span.start_ns, clock);
                prop_assert!(span.work_end_ns >= span.start_ns && span.end_ns >= span.work_end_ns);
                prop_assert_eq!(span.wait == Wait::None, span.end_ns == span.work_end_ns);
                clock = span.end_ns;
                let action = program.classes[0].threads[0].actions[span.action as usize];
                let comm = match action.kind {
                    ActionKind::Launch { .. } => None,
                    ActionKind::Collective { comm, .. } => Some(comm.index()),
                    _ => continue,
                };
                let (index, device) = enqueued.next().expect("a device span");
                prop_assert_eq!(device.enqueued_ns, span.end_ns);
                prop_assert!(device.start_ns >= device.enqueued_ns);
                // First in, first out, on the stream and on the communicator.
                prop_assert!(device.start_ns >= tails[device.stream as usize]);
                tails[device.stream as usize] = device.end_ns;
                match comm {
                    Some(comm) => {
                        prop_assert!(device.start_ns >= comms[comm]);
                        comms[comm] = device.end_ns;
                    }
                    None => {
                        let full = starts.iter().filter(|&&at| at > span.end_ns).count();
                        prop_assert!(full < depth as usize, "{full} had not started");
                        starts.push(device.start_ns);
                    }
                }
                // It starts exactly when what bound it let go.
                match device.binding {
                    Binding::Host(host) => {
                        prop_assert_eq!(iteration.host[host as usize].end_ns, device.start_ns);
                    }
                    Binding::Device(other) => {
                        prop_assert!((other as usize) < index);
                        let end = iteration.device[other as usize].end_ns;
                        prop_assert_eq!(end, device.start_ns);
                    }
                    Binding::Earlier => prop_assert!(device.start_ns > device.enqueued_ns),
                }
            }
            prop_assert!(enqueued.next().is_none());
            prop_assert_eq!(iteration.end_ns, clock);
        }
        prop_assert_eq!(run(&program, &options), timeline);
    }
}
