//! Breakdown, critical path, slack and comparison on timelines with closed forms, and what must
//! hold for all Programs.

use proptest::prelude::*;

use crate::engine::{Binding, HostSpan};
use crate::program::{Collective, Phase};
use crate::units::Ns;

use super::breakdown::{Breakdown, Part};
use super::compare::compare;
use super::critical_path::{Link, critical_path};
use super::edit::{Edit, Selector};
use super::scenario::Scenario;
use super::slack::slack;
use super::summary::summarise;
use super::test_programs::Small;

/// Main works 10, parks while autograd works 20 and enqueues a gather of 50 behind a kernel of 8,
/// works 5, and waits for the device.
fn handed_over() -> Scenario {
    let mut small = Small::new(&["compute", "gather"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    small.at(Phase::Forward(0), "root");
    small.host("forward", 10);
    small.on_autograd(|small| {
        small.at(Phase::Backward(0), "layer");
        small.host("backward", 20);
        small.launch("backward", 0, 3, 8);
        small.wait_stream("gather", 1, 0);
        small.collective("gather", Collective::AllGather, comm, 1, 50);
    });
    small.at(Phase::Optimizer, "root");
    small.host("optimizer", 5);
    small.synchronize("synchronize");
    small.scenario(2)
}

#[test]
fn a_parked_thread_is_told_by_the_one_that_works() {
    let scenario = handed_over();
    let iteration = scenario.still().expect("runs");
    let breakdown = Breakdown::new(&scenario.program, &iteration, 0);
    // Kernel 33..41, gather 41..91; the host is through at 38.
    assert_eq!(breakdown.step_ns, 91);
    assert_eq!(breakdown.part_ns(Part::Host), 10 + 20 + 5);
    assert_eq!(breakdown.part_ns(Part::Launch), 3);
    assert_eq!(breakdown.part_ns(Part::DeviceWait), 3);
    assert_eq!(breakdown.part_ns(Part::ExposedCommunication), 50);
    let summary = summarise(&scenario.program, &iteration);
    assert_eq!(summary.device_busy_ns, 58);
    assert_eq!(summary.hidden_communication_ns(), 0);
    assert!(!summary.host_bound());
    assert_eq!((summary.kernels, summary.collectives), (1, 1));
}

#[test]
fn the_path_goes_through_threads_and_streams() {
    let scenario = handed_over();
    let iteration = scenario.still().expect("runs");
    let path = critical_path(&scenario.program, &iteration);
    let told: Vec<(Link, Ns)> = path.iter().map(|step| (step.link, step.ns())).collect();
    assert_eq!(
        told,
        [
            (Link::Host, 10),
            (Link::Host, 20),
            (Link::Host, 3),
            (Link::Kernel, 8),
            (Link::Collective, 50)
        ]
    );
    // The optimizer's 5 run beside kernel and gather: 53 more would change nothing.
    let slack = slack(&scenario.program, &iteration);
    let optimizer = iteration
        .host
        .iter()
        .position(|span| span.work_end_ns - span.start_ns == 5);
    assert_eq!(slack.host_ns[optimizer.expect("there")], 53);
    assert_eq!(slack.device_ns, [0, 0]);
}

#[test]
fn hidden_communication_is_in_no_part() {
    let mut small = Small::new(&["compute", "gather"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    small.at(Phase::Forward(0), "root");
    small.collective("gather", Collective::AllGather, comm, 1, 30);
    small.host("forward", 100);
    small.synchronize("synchronize");
    let scenario = small.scenario(2);
    let iteration = scenario.still().expect("runs");
    let summary = summarise(&scenario.program, &iteration);
    assert_eq!((summary.step_ns, summary.host_ns()), (100, 100));
    assert_eq!(summary.exposed_communication_ns, 0);
    assert_eq!(summary.hidden_communication_ns(), 30);
    assert_eq!(slack(&scenario.program, &iteration).device_ns, [70]);
}

#[test]
fn a_full_launch_queue_is_told_by_what_the_device_does() {
    let mut small = Small::new(&["compute", "gather"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    small.at(Phase::Forward(0), "root");
    small.collective("gather", Collective::AllGather, comm, 1, 50);
    small.wait_stream("gather", 0, 1);
    for _ in 0..3 {
        small.launch("forward", 0, 0, 10);
    }
    small.synchronize("synchronize");
    let mut scenario = small.scenario(2);
    scenario.launch_queue_depth = 1;
    let iteration = scenario.still().expect("runs");
    let breakdown = Breakdown::new(&scenario.program, &iteration, 0);
    // The second launch waits for the first kernel's start, which waits for the gather; the third
    // for the second's start, 10 later. Then the last two kernels are waited for.
    assert_eq!(breakdown.part_ns(Part::ExposedCommunication), 50);
    assert_eq!(breakdown.part_ns(Part::LaunchQueue), 10);
    assert_eq!(breakdown.part_ns(Part::DeviceWait), 20);
    assert_eq!(breakdown.step_ns, 80);
}

/// A collective that starts when rank 1 has come, 30 after rank 0: the path goes through rank 1.
#[test]
fn a_late_rank_is_on_the_path() {
    let mut small = Small::new(&["compute"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    small.at(Phase::Forward(0), "root");
    small.host("forward", 10);
    small.collective("gather", Collective::AllGather, comm, 0, 20);
    small.synchronize("synchronize");
    let scenario = small.scenario(2);
    let mut iteration = scenario.still().expect("runs");
    let (start, end) = (iteration.start_ns, iteration.end_ns);
    assert_eq!(end - start, 30);
    // What an engine of several ranks tells when rank 1's host takes 40.
    let own = iteration.host.len() as u32;
    let late: Vec<_> = iteration.host[..2]
        .iter()
        .map(|span| HostSpan {
            rank: 1,
            start_ns: if span.action == 0 { start } else { start + 40 },
            work_end_ns: start + 40,
            end_ns: start + 40,
            ..*span
        })
        .collect();
    iteration.host.extend(late);
    let gather = &mut iteration.device[0];
    (gather.start_ns, gather.end_ns) = (start + 40, start + 60);
    gather.binding = Binding::Host(own + 1);
    iteration.end_ns = start + 60;
    let last = &mut iteration.host[own as usize - 1];
    last.end_ns = start + 60;
    let path = critical_path(&scenario.program, &iteration);
    let told: Vec<_> = path.iter().map(|p| (p.link, p.rank, p.ns())).collect();
    assert_eq!(told, [(Link::Host, 1, 40), (Link::Collective, 0, 20)]);
}

/// A step of a hook, a gather that may hide behind work, and work.
fn version(hook_ns: Ns, gather_ns: Ns) -> Scenario {
    let mut small = Small::new(&["compute", "gather"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    small.at(Phase::Forward(0), "root");
    small.collective("fsdp.gather", Collective::AllGather, comm, 1, gather_ns);
    small.host("model.forward", 100);
    if hook_ns > 0 {
        small.host("fsdp.hook", hook_ns);
    }
    small.synchronize("synchronize");
    small.scenario(2)
}

#[test]
fn overlapping_causes_share_what_neither_alone_explains() {
    // Right: a hook of 60 beside a gather of 160, either of which alone makes the step 160.
    let comparison = compare(&version(0, 80), &version(60, 160), 0).expect("runs");
    assert_eq!((comparison.left_ns, comparison.right_ns), (100, 160));
    assert_eq!((comparison.exact, comparison.orders), (true, 2));
    let told: Vec<(&str, i64, i64, i64)> = comparison
        .contributions
        .iter()
        .map(|c| (c.cause.as_str(), c.ns, c.low_ns, c.high_ns))
        .collect();
    assert_eq!(told, [("fsdp.gather", 30, 0, 60), ("fsdp.hook", 30, 0, 60)]);
    assert_eq!(comparison.unexplained_ns(), 0);
}

#[test]
fn a_difference_without_a_cause_is_named_as_unexplained() {
    // The right Program has hand-overs that wait; nothing that could be removed differs.
    let left = version(0, 10);
    let mut right = version(0, 10);
    right.launch_queue_depth = 1;
    let same = compare(&left, &right, 0).expect("runs");
    assert!(same.contributions.is_empty());
    assert_eq!(same.unexplained_ns(), same.gap_ns());
}

/// One random action.
#[derive(Debug, Clone)]
enum Act {
    Host(u8, Ns),
    Launch(u8, u32, Ns, Ns),
    Gather(u8, u32, Ns),
    Wait(u32, u32),
    Synchronize,
}

fn acts() -> impl Strategy<Value = Vec<(bool, Act)>> {
    let act = prop_oneof![
        (0..4u8, 0..50u64).prop_map(|(c, ns)| Act::Host(c, ns)),
        (0..4u8, 0..3u32, 0..20u64, 0..90u64).prop_map(|(c, s, h, d)| Act::Launch(c, s, h, d)),
        (0..4u8, 0..3u32, 0..90u64).prop_map(|(c, s, d)| Act::Gather(c, s, d)),
        (0..3u32, 0..3u32).prop_map(|(a, b)| Act::Wait(a, b)),
        Just(Act::Synchronize),
    ];
    prop::collection::vec((any::<bool>(), act), 1..60)
}

fn random(acts: &[(bool, Act)], depth: u32) -> Scenario {
    let mut small = Small::new(&["compute", "gather", "reduce"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    small.at(Phase::Forward(0), "root");
    let write = |small: &mut Small, act: &Act| match *act {
        Act::Host(cause, ns) => small.host(&format!("cause.{cause}"), ns),
        Act::Launch(cause, stream, host_ns, device_ns) => {
            small.launch(&format!("cause.{cause}"), stream, host_ns, device_ns);
        }
        Act::Gather(cause, stream, ns) => {
            let cause = format!("cause.{cause}");
            small.collective(&cause, Collective::AllGather, comm, stream, ns);
        }
        Act::Wait(waiter, waited) => small.wait_stream("wait", waiter, waited),
        Act::Synchronize => small.synchronize("synchronize"),
    };
    for (autograd, act) in acts {
        if *autograd {
            small.on_autograd(|small| write(small, act));
        } else {
            write(&mut small, act);
        }
    }
    small.synchronize("synchronize");
    Scenario {
        launch_queue_depth: depth,
        ..small.scenario(2)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Breakdown and critical path both cover the step without gap or overlap.
    #[test]
    fn parts_and_path_add_up_to_the_step(acts in acts(), depth in 1..5u32) {
        let scenario = random(&acts, depth);
        let iteration = scenario.still().expect("runs");
        let breakdown = Breakdown::new(&scenario.program, &iteration, 0);
        let path = critical_path(&scenario.program, &iteration);
        let segments = breakdown.segments.iter().map(|s| (s.start_ns, s.end_ns)).collect();
        let steps = path.iter().map(|s| (s.start_ns, s.end_ns)).collect();
        for stretches in [segments, steps] {
            let stretches: Vec<(Ns, Ns)> = stretches;
            let mut at = iteration.start_ns;
            for (start, end) in stretches {
                prop_assert_eq!(start, at);
                prop_assert!(end > start);
                at = end;
            }
            prop_assert_eq!(at, iteration.end_ns);
        }
        let parts: Ns = Part::ALL.iter().map(|&part| breakdown.part_ns(part)).sum();
        prop_assert_eq!(parts, iteration.step_ns());
    }

    /// Removing a cause never makes the step longer: there is no feedback that could.
    #[test]
    fn removing_a_cause_never_costs(acts in acts(), cause in 0..4u8) {
        let base = random(&acts, 1024);
        let mut changed = base.clone();
        let remove = Edit::Remove(Selector::cause(&format!("cause.{cause}")));
        prop_assume!(remove.apply(&mut changed).is_ok());
        prop_assert!(changed.still_ns().expect("runs") <= base.still_ns().expect("runs"));
    }

    /// A device span that is lengthened by its slack leaves the step as it is.
    #[test]
    fn slack_is_safe(acts in acts()) {
        let base = random(&acts, 1024);
        let first = crate::engine::simulate(&base.program, &base.prices, &Default::default());
        let first = first.expect("runs").iterations.remove(0);
        let slack = slack(&base.program, &first);
        for (index, &slack_ns) in slack.device_ns.iter().enumerate().take(5) {
            let span = first.device[index];
            let mut longer = base.clone();
            let actions = &mut longer.program.classes[0].threads[span.thread as usize].actions;
            let action = &mut actions[span.action as usize];
            if let crate::program::ActionKind::Launch { kernel, .. } = &mut action.kind {
                let length_ns = longer.prices.kernel_ns[kernel.index()];
                longer.program.kernels.push(longer.program.kernels[kernel.index()].clone());
                longer.prices.kernel_ns.push(length_ns + slack_ns);
                *kernel = crate::program::KernelId(longer.program.kernels.len() as u32 - 1);
                let again = crate::engine::simulate(&longer.program, &longer.prices, &Default::default());
                prop_assert_eq!(again.expect("runs").iterations[0].step_ns(), first.step_ns());
            }
        }
    }

    /// Contributions and remainder add up to the gap, whatever the Programs are.
    #[test]
    fn contributions_add_up_to_the_gap(left in acts(), right in acts(), seed in any::<u64>()) {
        let comparison = compare(&random(&left, 8), &random(&right, 8), seed).expect("runs");
        let total: i64 = comparison.contributions.iter().map(|c| c.ns).sum();
        prop_assert_eq!(total + comparison.unexplained_ns(), comparison.gap_ns());
        for c in &comparison.contributions {
            prop_assert_eq!(c.right_ns - c.left_ns, c.ns);
            prop_assert!(c.low_ns <= c.ns + 1 && c.ns <= c.high_ns + 1);
        }
    }
}
