//! What the schedules do per step, counted: collectives, hooks, events, kernels of their own.
//!
//! The numbers of the first tests are those of Megatron-LM d98e8a64 on the proxy with two
//! microbatches, read in its sources and, for the plain mesh and version 1's hybrid one, counted in
//! the recorded steps of `calibration/data/h200-1gpu/traces`. The formulas say how they follow the
//! layers, microbatches, experts and mesh. Where a Program differs from a recording, a comment at
//! the assertion says how.

use fsdpsim::program::{Action, ActionKind, Collective, Program, text_timeline};
use fsdpsim::schedule::build;
use fsdpsim::spec::{Fsdp, Spec};

const HYBRID: [&str; 2] = [
    "ddp.num_distributed_optimizer_instances=4",
    "ddp.outer_dp_sharding_strategy=optim",
];
const SEP: &str = "ddp.v2_build=sep";

/// A step and what can be counted in it.
struct Step(Program);

fn step(fsdp: Fsdp, sets: &[&str]) -> Step {
    let spec = Spec::load("dsv3-proxy", sets, Some(fsdp)).expect("a valid spec");
    Step(build(&spec, fsdp).expect("a valid program"))
}

impl Step {
    fn count(&self, predicate: impl Fn(&Action) -> bool) -> u64 {
        self.0.count(0, predicate) as u64
    }

    fn cause(&self, action: &Action) -> &str {
        self.0.cause_name(self.0.tag(action).cause)
    }

    /// Collectives of one kind on one communicator.
    fn collectives(&self, op: Collective, comm: &str) -> u64 {
        self.count(|action| match action.kind {
            ActionKind::Collective { comm: id, call, .. } => {
                self.0.collectives[call.index()].op == op
                    && self.0.communicators[id.index()].name == comm
            }
            _ => false,
        })
    }

    fn gathers(&self, comm: &str) -> u64 {
        self.collectives(Collective::AllGather, comm)
    }

    fn reductions(&self, comm: &str) -> u64 {
        self.collectives(Collective::ReduceScatter, comm)
    }

    /// How often host work of a class is done, repetitions included.
    fn bodies(&self, class: &str) -> u64 {
        let actions = self
            .0
            .actions(0)
            .map(|(_, action)| self.0.host_work(action));
        actions
            .filter(|work| work.class == class)
            .map(|work| u64::from(work.count))
            .sum()
    }

    /// Kernels launched for a cause.
    fn kernels(&self, cause: &str) -> u64 {
        self.count(|action| {
            matches!(action.kind, ActionKind::Launch { .. }) && self.cause(action) == cause
        })
    }

    /// Event records and stream waits that the data-parallel implementation itself calls. Marks
    /// inside collectives have no host work and do not count.
    fn events(&self) -> (u64, u64) {
        let own = |action: &Action| {
            !self.cause(action).starts_with("model.") && !self.0.host_work(action).class.is_empty()
        };
        let records = self
            .count(|action| matches!(action.kind, ActionKind::EventRecord { .. }) && own(action));
        let waits = self
            .count(|action| matches!(action.kind, ActionKind::StreamWait { .. }) && own(action));
        (records, waits)
    }
}

#[test]
fn v1_on_the_hybrid_mesh_gathers_29_times_inside_and_15_times_outside() {
    let step = step(Fsdp::V1, &HYBRID);
    // End of the step before: 8. Backward of microbatch 0, forward and backward of microbatch 1:
    // the 7 that are not the root's. 17 of the 29 go over two ranks, 12 are the experts' over one.
    assert_eq!(step.gathers("dp.inner"), 5 + 4 + 4 + 4);
    assert_eq!(step.gathers("expert_dp.inner"), 3 + 3 + 3 + 3);
    // Outer: with the 8, and once more with the 7 of microbatch 0, which need none.
    assert_eq!(step.gathers("dp.outer"), 5 + 4);
    assert_eq!(step.gathers("expert_dp.outer"), 3 + 3);
    assert_eq!(
        step.reductions("dp.inner") + step.reductions("expert_dp.inner"),
        16
    );
    assert_eq!(
        step.reductions("dp.outer") + step.reductions("expert_dp.outer"),
        8
    );
}

#[test]
fn v2_on_the_hybrid_mesh_gathers_32_times_inside_and_5_times_outside() {
    let step = step(Fsdp::V2, &[HYBRID[0], HYBRID[1], SEP]);
    assert_eq!(step.gathers("dp.inner"), 20);
    assert_eq!(
        step.gathers("expert_dp"),
        12,
        "experts are sharded over all of their ranks"
    );
    assert_eq!(
        step.gathers("dp.outer"),
        5,
        "dense groups, first unshard of the step"
    );
    assert_eq!(step.gathers("expert_dp.outer"), 0);
    assert_eq!(
        step.reductions("dp.inner") + step.reductions("expert_dp"),
        16
    );
    assert_eq!(step.reductions("dp.outer"), 5, "last microbatch");
    let every = "ddp.v2_outer_rs_every_microbatch=true";
    let before_7186 = self::step(Fsdp::V2, &[HYBRID[0], HYBRID[1], SEP, every]);
    assert_eq!(before_7186.reductions("dp.outer"), 10);
}

#[test]
fn the_plain_mesh_has_the_recorded_collectives() {
    // c10d calls of the recorded steps less the router's six all-gathers of token counts.
    let (ddp, v1, v2) = (
        step(Fsdp::Ddp, &[]),
        step(Fsdp::V1, &[]),
        step(Fsdp::V2, &[]),
    );
    let inner = |step: &Step, op| {
        step.collectives(op, "dp.inner")
            + step.collectives(op, "expert_dp.inner")
            + step.collectives(op, "expert_dp")
    };
    use Collective::{AllGather, ReduceScatter};
    assert_eq!([&ddp, &v1, &v2].map(|s| inner(s, AllGather)), [4, 29, 32]);
    assert_eq!(
        [&ddp, &v1, &v2].map(|s| inner(s, ReduceScatter)),
        [2, 16, 16]
    );
    for step in [ddp, v1, v2] {
        for outer in ["dp.outer", "expert_dp.outer"] {
            assert_eq!(step.gathers(outer) + step.reductions(outer), 0);
        }
    }
}

#[test]
fn gradients_arrive_146_times_a_microbatch_and_v2_rebinds_each() {
    for (fsdp, hook) in [
        (Fsdp::V1, "v1.param_hook/python"),
        (Fsdp::V2, "v2.param_hook/python"),
    ] {
        let step = step(fsdp, &[]);
        assert_eq!(step.bodies("autograd.accumulate/aten::detach"), 292);
        assert_eq!(step.bodies(hook), 292);
        let rebuilt = step.bodies("v2.rebind/_FromTorchTensor");
        assert_eq!(rebuilt, if fsdp == Fsdp::V2 { 292 } else { 0 });
    }
    let ddp = step(Fsdp::Ddp, &[]);
    assert_eq!(ddp.bodies("autograd.accumulate/aten::detach"), 292);
    assert_eq!(ddp.kernels("ddp.grad_accumulate"), 292);
}

#[test]
fn parameters_are_pointed_at_gathered_buffers_about_equally_often() {
    let (v1, v2) = (step(Fsdp::V1, &[]), step(Fsdp::V2, &[]));
    // Version 1: 146 at the end of the step before, then three times the 143 of the units.
    assert_eq!(v1.bodies("v1.repoint/aten::view"), 146 + 3 * 143);
    // Version 2: every module, forward and backward, both microbatches; each is switched twice.
    assert_eq!(v2.bodies("v2.unshard/aten::view"), 584);
    assert_eq!(v2.bodies("v2.param_switch/python"), 1168);
    assert_eq!(
        v1.bodies("v1.param_swap/python") + v1.bodies("v1.param_swap_back/python"),
        292
    );
}

#[test]
fn kernels_of_the_implementations_themselves() {
    let plain = step(Fsdp::V1, &[]);
    let hybrid = step(Fsdp::V1, &HYBRID);
    // zero_grad runs twice; a hybrid mesh clears the optimizer's view inside the shard again.
    assert_eq!(plain.kernels("v1.zero_kernels"), 16);
    assert_eq!(hybrid.kernels("v1.zero_kernels"), 32);
    // 100 copies of dense gradients, 192 additions to the experts' persistent buffers, which only
    // an inner mesh of one rank leaves whole.
    assert_eq!(hybrid.bodies("v1.param_hook/aten::copy_"), 100);
    assert_eq!(hybrid.bodies("v1.param_hook/aten::add_"), 192);
    assert_eq!(plain.bodies("v1.param_hook/aten::copy_"), 292);
    assert_eq!(
        hybrid.bodies("v1.bucket_reduce/aten::add_"),
        10,
        "shards of dense buckets"
    );
    assert_eq!(plain.bodies("v1.bucket_reduce/aten::add_"), 16);
    // Rank 0 owns parts of 23 parameters; the whole world of 146 is in tests of the layout.
    assert_eq!(hybrid.kernels("v1.main_to_model"), 23);

    let v2 = step(Fsdp::V2, &[]);
    assert_eq!(v2.kernels("v2.pack_copy_per_param"), 292);
    assert_eq!(v2.kernels("v2.main_to_model"), 8);
    assert_eq!(
        v2.bodies("v2.reduce/aten::div_"),
        6,
        "experts, by the expert-parallel size"
    );
    assert_eq!(
        v2.bodies("v2.reduce/aten::add_"),
        8,
        "bf16 main gradients: microbatch 1 adds"
    );
    let fp32 = step(Fsdp::V2, &["ddp.megatron_fsdp_main_grads_dtype=fp32"]);
    assert_eq!(
        fp32.bodies("v2.reduce/aten::add_"),
        16,
        "fp32: microbatch 0 casts"
    );
}

/// Records and waits that a recorded step has beyond those of DDP, whose are all the model's
/// (`cudaEventRecordWithFlags` and `cudaStreamWaitEvent` in the traces).
#[test]
fn event_records_and_stream_waits_are_those_of_the_traces() {
    assert_eq!(step(Fsdp::Ddp, &[]).events(), (0, 0));
    // 29 gathers and 16 reductions join; 16 events are recorded and waited for.
    assert_eq!(step(Fsdp::V1, &[]).events(), (29 + 16 + 16, 29 + 16 + 16));
    // Outer gathers join twice; the last microbatch records 8 more and waits for these alone.
    let (records, waits) = step(Fsdp::V1, &HYBRID).events();
    assert_eq!(
        (records, waits),
        (29 + 30 + 16 + 8 + 16 + 8, 29 + 30 + 16 + 8 + 16)
    );
    // A microbatch: 16 unshards, 16 reshards, 16 around reductions, 3 of the root; then 8 groups
    // cast on the gather stream.
    assert_eq!(step(Fsdp::V2, &[]).events(), (2 * 51 + 16, 2 * 51 + 16));
    assert_eq!(step(Fsdp::V2, &[SEP]).events(), (102, 102));
}

#[test]
fn the_host_waits_where_the_model_reads_counts_and_the_loss() {
    for &fsdp in Fsdp::ALL {
        let step = step(fsdp, &[]);
        assert_eq!(step.collectives(Collective::AllToAll, "ep"), 36);
        assert_eq!(step.gathers("ep"), 6, "token counts");
        let waits = |kind: fn(&ActionKind) -> bool| step.count(|action| kind(&action.kind));
        assert_eq!(waits(|k| matches!(k, ActionKind::HostWaitEvent { .. })), 6);
        // Of the 13 recorded `aten::item`, 12 read a value that is on the host already: eight in
        // attention (a mask check), four inside `index_put_` in the loss. They wait for nothing and
        // are part of those operators; reading the loss at the end of the step waits.
        assert_eq!(waits(|k| matches!(k, ActionKind::HostWaitStream { .. })), 1);
        assert_eq!(waits(|k| matches!(k, ActionKind::HostWaitDevice)), 1);
        let flex = self::step(fsdp, &["model.moe_token_dispatcher_type=flex"]);
        assert_eq!(
            flex.count(|a| matches!(a.kind, ActionKind::HostWaitEvent { .. })),
            0
        );
        // Six more all-reduces are recorded inside the router's autograd function, on a group of
        // one rank; they are part of its host cost and have no transfer.
        assert_eq!(step.collectives(Collective::AllReduce, "world"), 2);
    }
}

#[test]
fn version_2_of_september_keeps_what_that_of_august_rebuilds() {
    let (aug, sep) = (step(Fsdp::V2, &[]), step(Fsdp::V2, &[SEP]));
    // Partial buffers 16, reduced buffers 8 (bf16 main gradients), model weights 8.
    let rebuilt = |step: &Step| {
        step.bodies("v2.layout_rebuild/python") + step.bodies("v2.main_to_model.layout/python")
    };
    assert_eq!(rebuilt(&aug), 16 + 8 + 8);
    assert_eq!(rebuilt(&sep), 0);
    // The later build has its own norm loop, four kernels for every parameter that rank 0 owns a
    // part of; the earlier one skips the norm and the clipping with it.
    let local = sep.bodies("optimizer.clip/aten::detach");
    assert!(local > 0);
    assert_eq!(sep.kernels("v2.norm_loop"), 1 + 4 * local);
    assert_eq!(aug.kernels("v2.norm_loop"), 1);
    assert_eq!(aug.bodies("optimizer.clip/aten::detach"), 0);
    // Both gather, reduce and rebind alike.
    for class in [
        "v2.unshard/aten::view",
        "v2.rebind/_FromTorchTensor",
        "v2.param_switch/python",
    ] {
        assert_eq!(aug.bodies(class), sep.bodies(class));
    }
}

#[test]
fn counts_follow_layers_microbatches_experts_and_mesh() {
    for (layers, dense, microbatches, experts, world) in [
        (1, 0, 1, 8, 4),
        (2, 2, 3, 8, 8),
        (4, 1, 2, 32, 8),
        (5, 1, 1, 16, 16),
        (6, 2, 4, 8, 8),
    ] {
        let shape = [
            format!("model.num_layers={layers}"),
            format!("model.first_k_dense_replace={dense}"),
            format!("train.num_microbatches={microbatches}"),
            format!("model.num_moe_experts={experts}"),
            format!("parallel.world_size={world}"),
        ];
        let hybrid = [
            "ddp.num_distributed_optimizer_instances=2".to_owned(),
            HYBRID[1].to_owned(),
        ];
        for outer in [false, true] {
            let mut sets: Vec<&str> = shape.iter().map(String::as_str).collect();
            sets.push(SEP);
            if outer {
                sets.extend(hybrid.iter().map(String::as_str));
            }
            let (dense, moe) = (dense, layers - dense);
            let parameters = 3 + 11 * dense + 12 * moe + 2 * (experts / 2) * moe;
            let sizes = Sizes {
                layers,
                moe,
                microbatches,
                parameters,
                outer,
            };
            sizes.check_v1(&step(Fsdp::V1, &sets));
            sizes.check_v2(&step(Fsdp::V2, &sets));
        }
    }
}

/// What counts follow from.
#[derive(Debug)]
struct Sizes {
    layers: u64,
    moe: u64,
    microbatches: u64,
    parameters: u64,
    outer: bool,
}

impl Sizes {
    fn groups(&self) -> u64 {
        1 + self.layers + self.moe
    }

    fn check_v1(&self, step: &Step) {
        let (m, groups, parameters) = (self.microbatches, self.groups(), self.parameters);
        let outer = u64::from(self.outer);
        let passes = 2 * m - 1;
        let inner = groups + passes * (groups - 1);
        assert_eq!(
            step.gathers("dp.inner") + step.gathers("expert_dp.inner"),
            inner,
            "{self:?}"
        );
        let outer_gathers = outer * (2 * groups - 1);
        assert_eq!(
            step.gathers("dp.outer") + step.gathers("expert_dp.outer"),
            outer_gathers
        );
        assert_eq!(
            step.reductions("dp.inner") + step.reductions("expert_dp.inner"),
            m * groups
        );
        assert_eq!(
            step.reductions("dp.outer") + step.reductions("expert_dp.outer"),
            outer * groups
        );
        assert_eq!(step.bodies("v1.param_hook/python"), m * parameters);
        assert_eq!(
            step.bodies("v1.repoint/aten::view"),
            parameters + passes * (parameters - 3)
        );
        assert_eq!(step.kernels("v1.zero_kernels"), 2 * groups * (1 + outer));
        let waits = inner + 2 * outer_gathers + 2 * m * groups + outer * groups;
        assert_eq!(step.events().1, waits, "{self:?}");
        self.check_model(step);
    }

    fn check_v2(&self, step: &Step) {
        let (m, groups, parameters) = (self.microbatches, self.groups(), self.parameters);
        let outer = u64::from(self.outer);
        let dense_groups = groups - self.moe;
        assert_eq!(step.gathers("dp.inner"), 2 * m * dense_groups, "{self:?}");
        assert_eq!(step.gathers("expert_dp"), 2 * m * self.moe);
        assert_eq!(step.gathers("dp.outer"), outer * dense_groups);
        assert_eq!(step.reductions("dp.outer"), outer * dense_groups);
        assert_eq!(
            step.reductions("dp.inner") + step.reductions("expert_dp"),
            m * groups
        );
        assert_eq!(step.bodies("v2.rebind/_FromTorchTensor"), m * parameters);
        assert_eq!(step.bodies("v2.param_switch/python"), 4 * m * parameters);
        assert_eq!(step.events().1, m * (6 * groups + 3), "{self:?}");
        self.check_model(step);
    }

    fn check_model(&self, step: &Step) {
        let moe_passes = self.moe * self.microbatches;
        assert_eq!(step.collectives(Collective::AllToAll, "ep"), 6 * moe_passes);
        let waits = step.count(|a| matches!(a.kind, ActionKind::HostWaitEvent { .. }));
        assert_eq!(waits, moe_passes);
    }
}

/// A forward gather of version 1 is waited for by the unit that needs it, not by the first one.
#[test]
fn v1_waits_for_the_buckets_that_a_unit_needs_and_for_no_later_ones() {
    let step = step(Fsdp::V1, &[]);
    let mut waits: Vec<(String, usize)> = Vec::new();
    for (index, (_, action)) in step.0.actions(0).enumerate() {
        if step.cause(action) == "v1.gather_wait" {
            waits.push((step.0.tag(action).unit.clone(), index));
        }
    }
    // Every gather is waited for exactly once: the root's for the first microbatch only.
    assert_eq!(waits.len(), 29);
    assert_eq!(waits.iter().filter(|(unit, _)| unit == "root").count(), 1);
    assert_eq!(
        waits.iter().filter(|(unit, _)| unit == "layers.0").count(),
        4
    );
}

/// The timeline of a step of one dense layer, one MoE layer of one local expert and one microbatch,
/// what the model does folded away.
#[test]
fn golden_timelines() {
    let tiny = [
        "model.num_layers=2",
        "model.num_moe_experts=2",
        "model.moe_router_topk=1",
        "train.num_microbatches=1",
    ];
    for (name, fsdp, more) in [
        ("ddp", Fsdp::Ddp, &[][..]),
        ("v1_hybrid", Fsdp::V1, &HYBRID[..]),
        ("v2_aug", Fsdp::V2, &[][..]),
        ("v2_sep_hybrid", Fsdp::V2, &[HYBRID[0], HYBRID[1], SEP][..]),
    ] {
        let step = step(fsdp, &[&tiny[..], more].concat());
        let settings = || {
            let mut settings = insta::Settings::clone_current();
            settings.set_snapshot_path("../golden");
            settings.set_prepend_module_to_snapshot(false);
            settings.set_omit_expression(true);
            settings
        };
        settings().bind(|| insta::assert_snapshot!(name, folded(&text_timeline(&step.0, 0))));
    }
}

/// The model's own actions become one line a run, and what repeats is written once.
fn folded(text: &str) -> String {
    let of_model = |line: &str| {
        line.split_whitespace()
            .any(|word| word.starts_with("model."))
    };
    let hand_over = |line: &str| line.contains(" await ") || line.contains(" signal ");
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines() {
        let line = if of_model(line) && !hand_over(line) {
            "  ... model"
        } else {
            line
        };
        if line != "  ... model" || lines.last() != Some(&line) {
            lines.push(line);
        }
    }
    let mut out = String::new();
    let mut at = 0;
    while at < lines.len() {
        let (period, times) = (1..=8)
            .map(|period| (period, repeats(&lines[at..], period)))
            .max_by_key(|&(period, times)| ((times - 1) * period, std::cmp::Reverse(period)))
            .unwrap_or((1, 1));
        let cycle = &lines[at..at + period];
        let repeated = times > 1;
        if repeated {
            out.push_str(&format!("  {times} times:\n"));
        }
        for line in if repeated { cycle } else { &cycle[..1] } {
            let indent = if repeated { "  " } else { "" };
            out.push_str(&format!("{indent}{line}\n"));
        }
        at += if repeated { times * period } else { 1 };
    }
    out
}

/// How often the first `period` lines come in a row.
fn repeats(lines: &[&str], period: usize) -> usize {
    if lines.len() < period {
        return 1;
    }
    lines
        .chunks_exact(period)
        .take_while(|chunk| *chunk == &lines[..period])
        .count()
}
