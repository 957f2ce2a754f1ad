//! Publicly reported cases, in the small: what a what-if must say about each.

use crate::program::{Collective, Phase};
use crate::units::Ns;

use super::edit::{Edit, EditError, Selector};
use super::scenario::Scenario;
use super::test_programs::Small;
use super::what_if::gain;

const US: Ns = 1_000;
const MS: Ns = 1_000_000;

fn changed(scenario: &Scenario, edits: &[Edit]) -> Scenario {
    let mut changed = scenario.clone();
    for edit in edits {
        edit.apply(&mut changed).expect("an edit that can be made");
    }
    changed
}

fn step_ns(scenario: &Scenario) -> Ns {
    scenario.still_ns().expect("runs")
}

/// PyTorch 173680: 60 FSDP units, most of a few parameters, 1 ms of host work in each pre-forward
/// hook. Merging units must gain at least 15 %.
#[test]
fn merging_sixty_small_units_gains_their_hooks() {
    let mut small = Small::new(&["compute", "gather"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    for unit in 0..60 {
        small.at(Phase::Forward(0), &format!("unit.{unit}"));
        small.host("fsdp.pre_forward", MS);
        small.collective("fsdp.gather", Collective::AllGather, comm, 1, 20 * US);
        small.wait_stream("fsdp.gather", 0, 1);
        small.host("model.forward", 2 * MS);
        small.launch("model.forward", 0, 10 * US, 100 * US);
    }
    small.synchronize("step.synchronize");
    let base = small.scenario(2);
    let merge = |units| {
        let hooks = Edit::MergeUnits(Selector::cause("fsdp.pre_forward"), units);
        let gathers = Edit::MergeUnits(Selector::cause("fsdp.gather"), units);
        changed(&base, &[hooks, gathers])
    };
    let (before_ns, after_ns) = (step_ns(&base), step_ns(&merge(6)));
    // Fifty hooks of 1 ms go; the gathers are as long together as they were apart.
    assert!(before_ns - after_ns > 49 * MS && before_ns - after_ns <= 50 * MS);
    assert!(100 * (before_ns - after_ns) >= 15 * before_ns);
    assert_eq!(
        step_ns(&merge(1)),
        before_ns,
        "units of one are what was there"
    );
}

/// Megatron-LM 5772: a reduce-scatter and an all-gather on two streams. On one communicator the
/// second waits for the first; on two they overlap.
#[test]
fn two_communicators_let_gather_and_reduction_overlap() {
    let mut small = Small::new(&["compute", "gather", "reduce"]);
    let comm = small.builder.communicator("dp", vec![vec![0, 1]]);
    small.at(Phase::Backward(0), "layer");
    small.collective("fsdp.reduce", Collective::ReduceScatter, comm, 2, 3 * MS);
    small.collective("fsdp.gather", Collective::AllGather, comm, 1, 2 * MS);
    small.synchronize("step.synchronize");
    let base = small.scenario(2);
    assert_eq!(step_ns(&base), 5 * MS);
    let two = changed(
        &base,
        &[Edit::OwnCommunicator(Selector::cause("fsdp.gather"))],
    );
    assert_eq!(step_ns(&two), 3 * MS);
}

/// Torchtitan 1587: a device-to-host copy in each MoE layer drains the run-ahead.
#[test]
fn a_copy_to_the_host_in_each_layer_drains_the_run_ahead() {
    let mut small = Small::new(&["compute"]);
    small.at(Phase::Forward(0), "layer");
    for _ in 0..10 {
        small.host("model.layer", MS);
        small.launch("model.layer", 0, 0, 2 * MS);
        small.synchronize("model.dispatch_sync");
    }
    small.synchronize("step.synchronize");
    let base = small.scenario(1);
    // With the wait, host and device take turns; without, the device is busy from 1 ms on.
    assert_eq!(step_ns(&base), 30 * MS);
    let without = changed(
        &base,
        &[Edit::Remove(Selector::cause("model.dispatch_sync"))],
    );
    assert_eq!(step_ns(&without), 21 * MS);
}

/// Megatron-LM 6973: a GPU-bound step gains under 0.5 % from an extra stream, and from any host
/// what-if.
#[test]
fn a_gpu_bound_step_gains_nothing_from_the_host() {
    let mut small = Small::new(&["compute", "reduce"]);
    let comm = small.builder.communicator("outer", vec![vec![0, 1]]);
    small.at(Phase::Backward(0), "layer");
    for _ in 0..20 {
        small.host("fsdp.hook", 100 * US);
        small.launch("model.layer", 0, 10 * US, 30 * MS);
        small.wait_stream("fsdp.reduce", 1, 0);
        small.collective("fsdp.reduce", Collective::ReduceScatter, comm, 1, MS);
        small.collective("fsdp.outer_reduce", Collective::ReduceScatter, comm, 1, MS);
    }
    small.wait_stream("fsdp.reduce_wait", 0, 1);
    small.at(Phase::Finalize, "root");
    small.host("step.finalize", 10 * US);
    small.synchronize("step.synchronize");
    let base = small.scenario(2);
    let outer = Selector::cause("fsdp.outer_reduce");
    for edit in [
        Edit::OwnStream(outer, Phase::Finalize),
        Edit::Remove(Selector::cause("fsdp.hook")),
        Edit::HostSpeed(2.0),
    ] {
        let gain = gain(&base, &changed(&base, std::slice::from_ref(&edit))).expect("runs");
        let percent = gain.percent().mean;
        assert!((0.0..0.5).contains(&percent), "{edit:?}: {percent} %");
    }
}

/// Megatron-LM 7446: a host-bound optimizer phase becomes one graph launch (39.45 ms to 33.07 ms).
#[test]
fn a_graph_takes_the_host_out_of_the_optimizer() {
    let mut small = Small::new(&["compute"]);
    small.at(Phase::Backward(0), "layer");
    small.host("model.layer", 32 * MS);
    small.at(Phase::Optimizer, "root");
    for _ in 0..60 {
        small.host("optimizer.adam", 100 * US);
        small.launch("optimizer.adam", 0, 10 * US, 15 * US);
    }
    small.at(Phase::Outside, "root");
    small.synchronize("step.loss_item");
    let base = small.scenario(1);
    let graph = changed(&base, &[Edit::Graph("optimizer")]);
    // 60 times 110 us of host work become one launch; 60 kernels of 15 us remain.
    assert_eq!(step_ns(&base), 32 * MS + 6_600 * US + 15 * US);
    assert_eq!(step_ns(&graph), 32 * MS + 10 * US + 900 * US);
}

/// Both runs of a pair draw the same jitter, also when the edit inserts events: no noise is left.
#[test]
fn pairs_draw_the_same_jitter() {
    let mut small = Small::new(&["compute", "reduce"]);
    let comm = small.builder.communicator("outer", vec![vec![0, 1]]);
    small.at(Phase::Backward(0), "layer");
    for _ in 0..50 {
        small.host("fsdp.hook", 100 * US);
        small.collective("fsdp.outer_reduce", Collective::ReduceScatter, comm, 1, US);
    }
    small.host("gone", 10 * MS);
    small.host("fsdp.hook", 100 * US);
    small.synchronize("step.synchronize");
    let mut base = small.scenario(2);
    base.iterations = 20;
    base.jitter.actions = true;
    for cost in &mut base.prices.host {
        cost.log_sigma = if cost.centre_ns > 1e6 { 0.0 } else { 1.0 };
    }
    assert_ne!(
        base.noisy_ns().expect("runs")[0],
        base.still_ns().expect("runs")
    );
    let outer = Selector::cause("fsdp.outer_reduce");
    let moved = changed(&base, &[Edit::OwnStream(outer, Phase::Finalize)]);
    let gained = gain(&base, &moved).expect("runs").gain_ns;
    assert_eq!((gained.low, gained.high), (0.0, 0.0));
    let removed = changed(&base, &[Edit::Remove(Selector::cause("gone"))]);
    let gained = gain(&base, &removed).expect("runs").gain_ns;
    assert_eq!((gained.low, gained.high), (1e7, 1e7));
}

/// A graph cannot hold a host wait: the alltoall dispatcher's copy of token counts, say.
#[test]
fn a_phase_in_which_the_host_waits_cannot_be_captured() {
    let mut small = Small::new(&["compute"]);
    small.at(Phase::Forward(0), "layers.1");
    small.launch("model.dispatch", 0, 10, 10);
    small.synchronize("model.dispatch_sync");
    let mut base = small.scenario(1);
    let error = Edit::Graph("forward")
        .apply(&mut base)
        .expect_err("refused");
    assert!(matches!(error, EditError::Capture { .. }), "{error}");
    assert!(error.to_string().contains("model.dispatch_sync"), "{error}");
}

/// What is on no critical path gains nothing, to the nanosecond.
#[test]
fn work_beside_the_critical_path_gains_nothing() {
    let mut small = Small::new(&["compute", "side"]);
    small.at(Phase::Forward(0), "layer");
    small.launch("beside", 1, 0, 3 * MS);
    small.host("main.work", 10 * MS);
    small.launch("main.work", 0, 0, 5 * MS);
    small.synchronize("step.synchronize");
    let base = small.scenario(1);
    for edit in [
        Edit::Remove(Selector::cause("beside")),
        Edit::Scale(Selector::cause("beside"), 4.0),
    ] {
        assert_eq!(step_ns(&changed(&base, &[edit])), step_ns(&base));
    }
    // Six times as long, it is the longest.
    let long = changed(&base, &[Edit::Scale(Selector::cause("beside"), 6.0)]);
    assert_eq!(step_ns(&long), 18 * MS);
}

/// A loop over parameters becomes one call, and what the device does stays.
#[test]
fn a_batched_loop_costs_one_call() {
    let mut small = Small::new(&["compute"]);
    for unit in ["layers.0", "layers.1"] {
        small.at(Phase::Backward(0), unit);
        for _ in 0..12 {
            small.host("fsdp.pack", 20 * US);
            small.launch("fsdp.pack", 0, 10 * US, 5 * US);
        }
    }
    small.synchronize("step.synchronize");
    let base = small.scenario(1);
    let batched = changed(&base, &[Edit::Batch(Selector::cause("fsdp.pack"))]);
    assert_eq!(step_ns(&base), 24 * 30 * US + 5 * US);
    // Two calls; the first copy of 60 us hides behind the second call's 30 us only in part.
    assert_eq!(step_ns(&batched), 30 * US + 2 * 60 * US);
}

#[test]
fn an_unknown_cause_is_refused_with_what_is_there() {
    let mut small = Small::new(&["compute"]);
    small.host("a.b", 1);
    let mut base = small.scenario(1);
    match Edit::Remove(Selector::cause("a.c")).apply(&mut base) {
        Err(EditError::Nothing { cause, known, .. }) => {
            assert_eq!(cause, "a.c");
            assert_eq!(known, ["a.b"]);
        }
        other => panic!("{other:?}"),
    }
    assert!(
        Edit::Scale(Selector::cause("a.b"), -1.0)
            .apply(&mut base)
            .is_err()
    );
    assert!(Edit::HostSpeed(0.0).apply(&mut base).is_err());
    assert!(
        Edit::Remove(Selector::cause("a.*"))
            .apply(&mut base)
            .is_ok()
    );
}
