//! Megatron-FSDP v2: every layer, its experts and the root are modules with one parameter group
//! each; one module is gathered ahead; gradients are packed, reduced and rebound as DTensors after
//! the last gradient of a module.
//!
//! The order follows `experimental/module.py`, `parameter_group.py` and `dbuffer.py` of Megatron-LM
//! d98e8a64 (`v2_build = "aug"`), and the later build of issue 7264 where `Plan::v2_sep` says so.

use crate::program::{Collective, EventId, KernelClass, Phase, StreamId};

use super::hooks::Hooks;
use super::optimizer;
use super::plan::Plan;
use super::writer::{Call, Writer, bytes_kernel};

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

    fn unshard(&mut self, w: &mut Writer, plan: &Plan, index: usize) {
        let group = &plan.groups[index];
        let back = w.threads[w.current].unit.clone();
        w.unit(&group.unit.clone());
        let stream = Self::gather_stream(w);
        w.python("v2.unshard", "v2.unshard/python", 1);
        let ranks = Self::gather_ranks(plan, index);
        if self.stale[index] && Self::has_outer(plan, index) {
            let call = Call {
                class: "c10d::_allgather_base_",
                op: Collective::AllGather,
                comm: w.comms.outer,
                ranks: plan.mesh.outer,
                stream,
                bytes: group.padded_numel / ranks * BF16,
            };
            w.collective("v2.outer_gather", call);
        }
        self.stale[index] = false;
        let call = Call {
            class: "c10d::_allgather_base_",
            op: Collective::AllGather,
            comm: if group.experts {
                w.comms.expert_data
            } else {
                w.comms.inner_gather
            },
            ranks,
            stream,
            bytes: group.padded_numel * BF16,
        };
        w.collective("v2.unshard", call);
        let cause = "v2.local_view_math";
        for _ in &group.parameters {
            w.operator(cause, "v2.unshard/aten::narrow", 3);
            w.operator(cause, "v2.unshard/aten::view", 1);
            w.operator(
                cause,
                "v2.unshard/aten::_has_compatible_shallow_copy_type",
                1,
            );
        }
        let parameters = group.parameters.len() as u64;
        w.python("v2.param_switch", "v2.param_switch/python", parameters);
        let event = w.record("v2.stream_event_ops", "cuda.event_record", stream);
        self.unsharded[index] = Some(event);
        w.unit(&back);
    }

    fn reshard(&mut self, w: &mut Writer, plan: &Plan, index: usize) {
        let parameters = plan.groups[index].parameters.len() as u64;
        w.python("v2.param_switch", "v2.param_switch/python", parameters);
        let (stream, compute) = (Self::gather_stream(w), w.streams.compute);
        w.wait_stream("v2.stream_event_ops", stream, compute);
        self.unsharded[index] = None;
    }

    /// Waits for the module's own gather and starts those of the next modules in `order`.
    fn enter(&mut self, w: &mut Writer, plan: &Plan, order: &[usize], index: usize, ahead: u64) {
        w.python("v2.module_hooks", "v2.enter/python", 1);
        // A push here and its pop on leaving.
        w.python("v2.nvtx", "v2.nvtx/python", 1);
        if self.unsharded[index].is_none() {
            self.unshard(w, plan, index);
        }
        if let Some(event) = self.unsharded[index] {
            let compute = w.streams.compute;
            w.wait_event("v2.stream_event_ops", "cuda.wait_event", compute, event);
        }
        let position = order
            .iter()
            .position(|&module| module == index)
            .unwrap_or(order.len());
        let next: Vec<usize> = order
            .iter()
            .skip(position + 1)
            .take(ahead as usize)
            .copied()
            .collect();
        for module in next {
            if self.unsharded[module].is_none() {
                self.unshard(w, plan, module);
            }
        }
    }

    fn leave(&mut self, w: &mut Writer, plan: &Plan, index: usize) {
        w.python("v2.module_hooks", "v2.leave/python", 1);
        self.reshard(w, plan, index);
    }

    fn post_module_backward(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, index: usize) {
        w.python("v2.module_hooks", "v2.post_backward/python", 1);
        self.reshard(w, plan, index);
        let group = &plan.groups[index];
        let parameters = group.parameters.len() as u64;
        let (stream, compute) = (Self::reduce_stream(w, plan), w.streams.compute);
        if !plan.v2_sep {
            w.python("v2.layout_rebuild", "v2.layout_rebuild/python", 1);
        }
        w.operator("v2.partial_buffer", "v2.partial_buffer/aten::empty", 1);
        w.wait_stream("v2.compute_waits_rs", compute, stream);
        for parameter in &group.parameters {
            w.operator("v2.local_view_math", "v2.pack/aten::narrow", 3);
            w.operator("v2.local_view_math", "v2.pack/aten::view", 1);
            let copy = bytes_kernel("pack", KernelClass::Copy, 2 * BF16 * parameter.numel);
            let cause = "v2.pack_copy_per_param";
            w.kernel_operator(cause, "v2.pack/aten::copy_", 1, compute, copy);
        }
        w.wait_stream("v2.stream_event_ops", stream, compute);
        w.python("v2.reduce", "v2.reduce/python", parameters);
        self.reduce(w, plan, microbatch, index, stream);
        for parameter in &group.parameters {
            self.rebind(w, parameter.local);
        }
    }

    fn reduce(&self, w: &mut Writer, plan: &Plan, microbatch: u16, index: usize, stream: StreamId) {
        let group = &plan.groups[index];
        let ranks = Self::gather_ranks(plan, index);
        let shard = group.padded_numel / ranks;
        let direct = microbatch == 0 && plan.main_grad_bytes == BF16;
        if !direct {
            // The reduction needs a buffer of its own, and its layout is built again.
            if !plan.v2_sep {
                w.python("v2.layout_rebuild", "v2.layout_rebuild/python", 1);
            }
            w.operator("v2.partial_buffer", "v2.reduced_buffer/aten::empty", 1);
        }
        let call = Call {
            class: "c10d::_reduce_scatter_base_",
            op: Collective::ReduceScatter,
            comm: if group.experts {
                w.comms.expert_data
            } else {
                w.comms.inner
            },
            ranks: 0,
            stream,
            bytes: group.padded_numel * BF16,
        };
        w.collective("v2.reduce", call);
        let cause = "v2.extra_cast_accum";
        if group.experts && plan.mesh.expert_parallel > 1 {
            let divide = bytes_kernel("divide", KernelClass::Elementwise, 2 * BF16 * shard);
            w.kernel_operator(cause, "v2.reduce/aten::div_", 1, stream, divide);
        }
        if !direct {
            let bytes = (BF16 + 2 * plan.main_grad_bytes) * shard;
            let add = bytes_kernel("accumulate", KernelClass::Elementwise, bytes);
            w.kernel_operator(cause, "v2.reduce/aten::add_", 1, stream, add);
        }
        let last = microbatch + 1 == plan.microbatches;
        if Self::has_outer(plan, index) && (last || plan.v2_outer_every_microbatch) {
            let call = Call {
                class: "c10d::_reduce_scatter_base_",
                op: Collective::ReduceScatter,
                comm: w.comms.outer,
                ranks: 0,
                stream,
                bytes: shard * plan.main_grad_bytes,
            };
            w.collective("v2.outer_reduce", call);
        }
    }

    /// A view of the local shard wrapped as a DTensor and set as the gradient.
    fn rebind(&self, w: &mut Writer, local: bool) {
        let view = "v2.local_view_math";
        if local {
            w.operator(view, "v2.rebind/aten::narrow", 3);
            w.operator(view, "v2.rebind/aten::view", 1);
        } else {
            w.operator(view, "v2.rebind/aten::empty", 1);
        }
        w.operator("v2.dtensor_rebind", "v2.rebind/_FromTorchTensor", 3);
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

impl V2 {
    /// `aug`: one all-reduce of a norm that clipping then skips. `sep`: a Python loop over the
    /// parameters with four kernels for each non-empty shard, then a multi-tensor scale.
    fn clip(&self, w: &mut Writer, plan: &Plan, local: u64, elements: u64) {
        let cause = "v2.norm_loop";
        let compute = w.streams.compute;
        let zeros = bytes_kernel("zeros", KernelClass::Tiny, 0);
        w.kernel_operator(cause, "v2.norm/aten::zeros", 4, compute, zeros);
        if plan.v2_sep {
            w.python(cause, "v2.norm_loop/python", plan.parameter_count());
            for _ in 0..local {
                for name in ["aten::pow", "aten::sum", "aten::div", "aten::add_"] {
                    let class = format!("v2.norm_loop/{name}");
                    let bytes = 4 * elements / local.max(1);
                    let kernel = bytes_kernel(name, KernelClass::Reduction, bytes);
                    w.kernel_operator(cause, &class, 2, compute, kernel);
                }
            }
        }
        optimizer::norm_all_reduce(w, "optimizer.grad_norm");
        optimizer::clip(
            w,
            "optimizer.clip",
            if plan.v2_sep { local } else { 0 },
            elements,
        );
    }
}
