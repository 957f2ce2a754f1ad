//! Megatron-FSDP v2: every layer, its experts and the root are modules with one parameter group
//! each; one module is gathered ahead; gradients are packed, reduced and rebound as DTensors after
//! the last gradient of a module.
//!
//! The order follows `experimental/module.py`, `parameter_group.py` and `dbuffer.py` of Megatron-LM
//! d98e8a64 (`v2_build = "aug"`), and the later build of issue 7264 where `Plan::v2_sep` says so.

mod reduce;
mod unshard;

use crate::program::{EventId, KernelClass, Phase, StreamId};

use super::hooks::Hooks;
use super::optimizer;
use super::plan::Plan;
use super::writer::{Writer, bytes_kernel};

/// Bytes of a weight or a gradient on the wire (bf16).
const BF16: u64 = 2;

/// Megatron-FSDP v2.
#[derive(Debug)]
pub struct V2 {
    /// Event of the running unshard of each module, until it is resharded.
    unsharded: Vec<Option<EventId>>,
    /// Whether the outer-sharded weights of each group are newer than the gathered copy.
    stale: Vec<bool>,
}

impl V2 {
    /// Nothing is gathered at the start of a step; all weights are new.
    pub fn new(plan: &Plan) -> Self {
        V2 {
            unsharded: vec![None; plan.groups.len()],
            stale: vec![true; plan.groups.len()],
        }
    }

    fn gather_stream(w: &Writer) -> StreamId {
        w.streams.gather
    }

    fn reduce_stream(w: &Writer, plan: &Plan) -> StreamId {
        if plan.v2_one_communication_stream {
            w.streams.gather
        } else {
            w.streams.reduce
        }
    }

    /// Whether the group has an outer mesh: experts of v2 are sharded over one mesh.
    fn has_outer(plan: &Plan, index: usize) -> bool {
        plan.mesh.outer > 1 && !plan.groups[index].experts
    }

    /// Ranks over which v2 shards the group's weights.
    fn gather_ranks(plan: &Plan, index: usize) -> u64 {
        let group = &plan.groups[index];
        if group.experts {
            plan.mesh.expert_inner * plan.mesh.expert_outer
        } else {
            plan.mesh.inner
        }
    }

    fn forward_order(plan: &Plan) -> Vec<usize> {
        (0..plan.groups.len()).collect()
    }

    fn backward_order(plan: &Plan) -> Vec<usize> {
        let mut order = vec![0];
        for layer in (0..plan.layers.len() as u64).rev() {
            order.extend((0..plan.groups.len()).filter(|&g| plan.groups[g].layer == Some(layer)));
        }
        order
    }
}

impl Hooks for V2 {
    fn zero_grad(&mut self, w: &mut Writer, plan: &Plan) {
        w.python(
            "v2.zero_grad",
            "v2.zero_grad/python",
            plan.parameter_count(),
        );
    }

    fn pre_model(&mut self, w: &mut Writer, plan: &Plan, _: u16) {
        let (stream, compute) = (Self::gather_stream(w), w.streams.compute);
        w.wait_stream("v2.stream_event_ops", stream, compute);
        let order = Self::forward_order(plan);
        self.enter(w, plan, &order, 0, plan.v2_forward_prefetch);
    }

    fn pre_layer(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let order = Self::forward_order(plan);
        let Some(index) = plan.group_index(layer, false) else {
            return;
        };
        self.enter(w, plan, &order, index, plan.v2_forward_prefetch);
    }

    fn post_layer(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let Some(index) = plan.group_index(layer, false) else {
            return;
        };
        self.leave(w, plan, index);
        w.operator(
            "v2.bwdhook_nodes",
            "v2.post_forward/BackwardHookFunction",
            3,
        );
    }

    fn pre_experts(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let Some(index) = plan.group_index(layer, true) else {
            return;
        };
        w.unit(&plan.groups[index].unit.clone());
        let order = Self::forward_order(plan);
        self.enter(w, plan, &order, index, plan.v2_forward_prefetch);
        w.operator("v2.bwdhook_nodes", "v2.pre_experts/BackwardHookFunction", 7);
    }

    fn post_experts(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let Some(index) = plan.group_index(layer, true) else {
            return;
        };
        self.leave(w, plan, index);
        w.operator(
            "v2.bwdhook_nodes",
            "v2.post_forward/BackwardHookFunction",
            3,
        );
    }

    fn post_model(&mut self, w: &mut Writer, plan: &Plan, _: u16) {
        self.leave(w, plan, 0);
        w.operator("v2.bwdhook_nodes", "v2.post_model/BackwardHookFunction", 3);
    }

    fn pre_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16) {
        let class = "v2.pre_backward/BackwardHookFunctionBackward";
        w.operator("v2.bwdhook_nodes", class, 2);
        let (stream, compute) = (Self::reduce_stream(w, plan), w.streams.compute);
        w.wait_stream("v2.stream_event_ops", stream, compute);
        let order = Self::backward_order(plan);
        self.enter(w, plan, &order, 0, plan.v2_backward_prefetch);
    }

    fn pre_layer_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let class = "v2.pre_backward/BackwardHookFunctionBackward";
        w.operator("v2.bwdhook_nodes", class, 2);
        let order = Self::backward_order(plan);
        let Some(index) = plan.group_index(layer, false) else {
            return;
        };
        self.enter(w, plan, &order, index, plan.v2_backward_prefetch);
    }

    fn pre_experts_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let Some(index) = plan.group_index(layer, true) else {
            return;
        };
        w.unit(&plan.groups[index].unit.clone());
        let class = "v2.pre_backward/BackwardHookFunctionBackward";
        w.operator("v2.bwdhook_nodes", class, 2);
        let order = Self::backward_order(plan);
        self.enter(w, plan, &order, index, plan.v2_backward_prefetch);
    }

    fn post_experts_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let Some(index) = plan.group_index(layer, true) else {
            return;
        };
        w.unit(&plan.groups[index].unit.clone());
        let class = "v2.post_experts.backward/BackwardHookFunctionBackward";
        w.operator("v2.bwdhook_nodes", class, 2);
    }

    fn accumulate(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        microbatch: u16,
        group: usize,
        _: usize,
        arrived: usize,
    ) {
        w.operator("v2.param_hook", "autograd.accumulate/aten::detach", 4);
        w.python("v2.param_hook", "v2.param_hook/python", 1);
        if arrived == plan.groups[group].parameters.len() {
            self.post_module_backward(w, plan, microbatch, group);
        }
    }

    fn post_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16) {
        let (stream, compute) = (Self::reduce_stream(w, plan), w.streams.compute);
        w.wait_stream("v2.reduce_wait", compute, stream);
    }

    fn finalize(&mut self, w: &mut Writer, plan: &Plan) {
        w.python("v2.finalize", "v2.finalize/python", plan.parameter_count());
    }

    fn optimizer(&mut self, w: &mut Writer, plan: &Plan) {
        let (local, elements) = (plan.local_parameters(), plan.optimizer_elements());
        w.python(
            "optimizer.grad_norm",
            "v2.optimizer/python",
            plan.parameter_count(),
        );
        if plan.clip {
            self.clip(w, plan, local, elements);
        }
        optimizer::adam(w, "optimizer.adam", &plan.decay_groups(), 24);
        let (gather, compute) = (w.streams.gather, w.streams.compute);
        for index in 0..plan.groups.len() {
            let group = &plan.groups[index];
            w.unit(&group.unit.clone());
            let shard = group.padded_numel / Self::gather_ranks(plan, index);
            let outer = if Self::has_outer(plan, index) {
                plan.mesh.outer
            } else {
                1
            };
            let cast = bytes_kernel("cast", KernelClass::Cast, 6 * shard / outer);
            let cause = "v2.main_to_model";
            if plan.v2_sep {
                w.kernel_operator(cause, "v2.main_to_model/aten::copy_", 1, compute, cast);
                continue;
            }
            w.wait_stream("v2.stream_event_ops", gather, compute);
            w.python("v2.layout_rebuild", "v2.main_to_model.layout/python", 1);
            w.operator(cause, "v2.main_to_model/aten::empty", 1);
            w.kernel_operator(cause, "v2.main_to_model/aten::copy_", 1, gather, cast);
            w.wait_stream("v2.stream_event_ops", compute, gather);
        }
        w.at(Phase::Optimizer, "root");
        self.stale.fill(true);
    }
}
