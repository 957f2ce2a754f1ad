//! Megatron-FSDP v1: units of whole layers, one bucket a parameter group, gradient hooks in Python
//! for every parameter, gathers of everything ahead that fits the prefetch budget.
//!
//! The order follows `megatron_fsdp.py` and `param_and_grad_buffer.py` of Megatron-LM d98e8a64.

use crate::program::{Collective, KernelClass, Phase};

use super::hooks::Hooks;
use super::optimizer;
use super::plan::Plan;
use super::writer::{Call, Writer, bytes_kernel};

/// Bytes of a weight (bf16).
const BF16: u64 = 2;

/// State of a bucket's gathered weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bucket {
    Empty,
    Gathered,
}

/// Megatron-FSDP v1.
#[derive(Debug)]
pub struct V1 {
    buckets: Vec<Bucket>,
    /// Elements gathered and not yet released, for the prefetch budget.
    held: u64,
}

impl V1 {
    /// At the start of a step everything that the budget allows was gathered by the step before.
    pub fn new(plan: &Plan) -> Self {
        let mut state = V1 {
            buckets: vec![Bucket::Empty; plan.groups.len()],
            held: 0,
        };
        for group in state.to_gather(plan, 0, true) {
            state.take(plan, group);
        }
        state
    }

    fn take(&mut self, plan: &Plan, group: usize) {
        self.buckets[group] = Bucket::Gathered;
        if plan.groups[group].layer.is_some() {
            self.held += plan.groups[group].padded_numel;
        }
    }

    fn release(&mut self, plan: &Plan, layer: u64) {
        for experts in [false, true] {
            let group = plan
                .groups
                .iter()
                .position(|group| group.layer == Some(layer) && group.experts == experts);
            if let Some(group) = group
                && self.buckets[group] == Bucket::Gathered
            {
                self.buckets[group] = Bucket::Empty;
                self.held -= plan.groups[group].padded_numel;
            }
        }
    }

    /// Buckets to gather when `needed` is asked for: it and what lies ahead (later ids forward,
    /// earlier ids backward) within the budget, none that is gathered already.
    fn to_gather(&self, plan: &Plan, needed: usize, forward: bool) -> Vec<usize> {
        let ahead: Vec<usize> = if forward {
            (needed..plan.groups.len()).collect()
        } else {
            backward_order(plan)
                .into_iter()
                .skip_while(|&group| group != needed)
                .collect()
        };
        let mut held = self.held;
        let mut units = 0;
        let mut chosen = Vec::new();
        for (position, group) in ahead.into_iter().enumerate() {
            if self.buckets[group] == Bucket::Gathered {
                continue;
            }
            let numel = plan.groups[group].padded_numel;
            let same_unit = position > 0 && plan.groups[group].experts && !chosen.is_empty();
            units += u64::from(!same_unit && plan.groups[group].layer.is_some());
            let fits = held + numel <= plan.v1_prefetch_elements
                && plan.v1_buffers.is_none_or(|buffers| units <= buffers);
            if position > 0 && !same_unit && !fits {
                break;
            }
            held += numel;
            chosen.push(group);
        }
        // Whatever the direction, the gathers are issued in order of bucket id.
        chosen.sort_unstable();
        chosen
    }

    /// Gathers one bucket: outer mesh first if the weights are stale, then parameters are pointed
    /// at the bucket and the inner all-gather is enqueued.
    fn gather(&mut self, w: &mut Writer, plan: &Plan, index: usize, outer: bool) {
        let group = &plan.groups[index];
        let unit = group.unit.clone();
        w.unit(&unit);
        let streams = w.streams;
        w.python("v1.gather", "v1.gather/python", 1);
        if outer && plan.mesh.outer > 1 {
            let cause = "v1.outer_gather";
            w.wait_stream(cause, streams.outer_gather, streams.compute);
            w.operator(cause, "v1.outer_gather/aten::slice", 2);
            let call = Call {
                class: "c10d::allgather_into_tensor_coalesced_",
                op: Collective::AllGather,
                comm: if group.experts {
                    w.comms.expert_outer
                } else {
                    w.comms.outer
                },
                ranks: plan.outer_size(group),
                stream: streams.outer_gather,
                bytes: plan.inner_shard(group) * BF16,
            };
            w.collective(cause, call);
            w.wait_stream(cause, streams.gather, streams.outer_gather);
        }
        w.wait_stream("v1.gather", streams.gather, streams.compute);
        let cause = "v1.param_repoint";
        for _ in &group.parameters {
            w.operator(cause, "v1.repoint/aten::slice", 2);
            w.operator(cause, "v1.repoint/aten::view", 1);
            w.operator(
                cause,
                "v1.repoint/aten::_has_compatible_shallow_copy_type",
                1,
            );
        }
        w.operator("v1.gather", "v1.gather/aten::slice", 2);
        let comm = match (group.experts, plan.separate_gather_group) {
            (true, _) => w.comms.expert_inner,
            (false, true) => w.comms.inner_gather,
            (false, false) => w.comms.inner,
        };
        let call = Call {
            class: "c10d::allgather_into_tensor_coalesced_",
            op: Collective::AllGather,
            comm,
            ranks: plan.inner_size(group),
            stream: streams.gather,
            bytes: group.padded_numel * BF16,
        };
        w.collective("v1.gather", call);
        self.take(plan, index);
    }

    /// Gathers what is missing, then lets the compute stream wait for the needed bucket, parameter
    /// by parameter in Python.
    fn ensure(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        needed: &[usize],
        forward: bool,
        outer: bool,
    ) {
        let Some(&first) = needed.first() else { return };
        let missing = needed
            .iter()
            .any(|&group| self.buckets[group] == Bucket::Empty);
        let unit = plan.groups[first].unit.clone();
        let chosen = if missing || forward || first != 0 {
            self.to_gather(plan, first, forward)
        } else {
            Vec::new()
        };
        let gathered = !chosen.is_empty();
        for group in chosen {
            self.gather(w, plan, group, outer);
        }
        w.unit(&unit);
        if gathered {
            let (compute, gather) = (w.streams.compute, w.streams.gather);
            w.wait_stream("v1.gather_wait", compute, gather);
        }
        for &group in needed {
            let parameters = plan.groups[group].parameters.len() as u64;
            w.python("v1.param_loops", "v1.wait_bucket/python", parameters);
        }
    }

    fn layer_groups(plan: &Plan, layer: u64) -> Vec<usize> {
        (0..plan.groups.len())
            .filter(|&index| plan.groups[index].layer == Some(layer))
            .collect()
    }

    fn unit_parameters(plan: &Plan, layer: u64) -> u64 {
        let groups = Self::layer_groups(plan, layer);
        groups
            .iter()
            .map(|&group| plan.groups[group].parameters.len() as u64)
            .sum()
    }

    /// Scales, reduce-scatters and accumulates a bucket whose gradients have all arrived.
    fn reduce(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, index: usize) {
        let group = &plan.groups[index];
        let streams = w.streams;
        let (cause, stream) = ("v1.bucket_reduce", streams.reduce);
        let bytes = group.padded_numel * plan.main_grad_bytes;
        w.python(cause, "v1.bucket_reduce/python", 1);
        w.wait_stream(cause, stream, streams.compute);
        let fp32 = plan.main_grad_bytes == 4;
        if !plan.average_in_collective && !fp32 && plan.mesh.outer == 1 {
            let scale = bytes_kernel("scale", KernelClass::Elementwise, 2 * bytes);
            w.kernel_operator(cause, "v1.bucket_reduce/aten::mul_", 1, stream, scale);
        }
        let call = Call {
            class: "v1.reduce/c10d::reduce_scatter_tensor_coalesced_",
            op: Collective::ReduceScatter,
            comm: if group.experts {
                w.comms.expert_inner
            } else {
                w.comms.inner
            },
            ranks: 0,
            stream,
            bytes,
        };
        w.collective(cause, call);
        let shard_bytes = bytes / plan.inner_size(group);
        if plan.inner_size(group) > 1 {
            let add = bytes_kernel("accumulate", KernelClass::Elementwise, 3 * shard_bytes);
            w.kernel_operator(cause, "v1.bucket_reduce/aten::add_", 1, stream, add);
        }
        w.record(cause, "cuda.event_record", stream);
        if microbatch + 1 == plan.microbatches && plan.mesh.outer > 1 {
            let cause = "v1.outer_reduce";
            w.wait_stream(cause, streams.outer_reduce, stream);
            let call = Call {
                class: "v1.reduce/c10d::reduce_scatter_tensor_coalesced_",
                op: Collective::ReduceScatter,
                comm: if group.experts {
                    w.comms.expert_outer
                } else {
                    w.comms.outer
                },
                ranks: 0,
                stream: streams.outer_reduce,
                bytes: shard_bytes,
            };
            w.collective(cause, call);
            w.record(cause, "cuda.event_record", streams.outer_reduce);
        }
    }
}

/// Parameters outside layers.
fn root_parameters(plan: &Plan) -> u64 {
    let root = plan.groups.iter().filter(|group| group.layer.is_none());
    root.map(|group| group.parameters.len() as u64).sum()
}

/// Buckets in the order in which backward prefetch considers them: descending ids, so a layer's
/// experts come before its other parameters.
fn backward_order(plan: &Plan) -> Vec<usize> {
    (0..plan.groups.len())
        .rev()
        .filter(|&group| plan.groups[group].layer.is_some())
        .collect()
}

impl Hooks for V1 {
    fn zero_grad(&mut self, w: &mut Writer, plan: &Plan) {
        // Called twice: once for the gradient buffers, once through the optimizer. With several
        // optimizer instances the shard inside the helper buffer is cleared again.
        let buffers = if plan.mesh.outer > 1 { 2 } else { 1 };
        for _ in 0..2 {
            w.python(
                "v1.main_grad_reset",
                "v1.zero_grad/python",
                plan.parameter_count(),
            );
            for group in &plan.groups {
                for _ in 0..buffers {
                    let bytes = plan.inner_shard(group) * plan.main_grad_bytes;
                    let fill = bytes_kernel("zero", KernelClass::Fill, bytes);
                    let (cause, compute) = ("v1.zero_kernels", w.streams.compute);
                    w.kernel_operator(cause, "v1.zero_grad/aten::zero_", 2, compute, fill);
                }
            }
        }
    }

    fn pre_model(&mut self, w: &mut Writer, plan: &Plan, _: u16) {
        w.python("v1.module_hooks", "v1.pre_model/python", 1);
        let root = root_parameters(plan);
        w.python("v1.param_loops", "v1.wait_bucket/python", root);
    }

    fn pre_layer(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, layer: u64) {
        w.python("v1.module_hooks", "v1.pre_forward/python", 1);
        self.ensure(
            w,
            plan,
            &Self::layer_groups(plan, layer),
            true,
            microbatch == 0,
        );
        w.operator(
            "v1.tree_map_outputs",
            "v1.pre_forward/RegisterFSDPBackwardFunction",
            3,
        );
    }

    fn post_layer(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let parameters = Self::unit_parameters(plan, layer);
        w.python("v1.param_loops", "v1.post_forward/python", parameters);
        w.operator("v1.tree_map_outputs", "v1.post_forward/aten::view_as", 2);
        self.release(plan, layer);
    }

    fn post_head(&mut self, w: &mut Writer, _: &Plan, _: u16) {
        w.operator("v1.tree_map_outputs", "v1.post_head/aten::view_as", 2);
    }

    fn post_model(&mut self, w: &mut Writer, _: &Plan, _: u16) {
        w.operator("v1.tree_map_outputs", "v1.post_model/aten::view_as", 2);
    }

    fn pre_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16) {
        let modules = plan.layers.len() as u64;
        w.python(
            "v1.module_state_loops",
            "v1.root_pre_backward/python",
            modules,
        );
        w.operator(
            "v1.tree_map_outputs",
            "v1.post_model.backward/ViewBackward0",
            4,
        );
    }

    fn pre_head_backward(&mut self, w: &mut Writer, _: &Plan, _: u16) {
        w.operator(
            "v1.tree_map_outputs",
            "v1.post_head.backward/ViewBackward0",
            4,
        );
    }

    fn pre_layer_backward(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, layer: u64) {
        w.python("v1.module_state_loops", "v1.pre_backward/python", 1);
        let mut needed = Self::layer_groups(plan, layer);
        needed.reverse();
        self.ensure(w, plan, &needed, false, microbatch == 0);
        w.unit(&format!("layers.{layer}"));
        w.operator(
            "v1.tree_map_outputs",
            "v1.post_forward.backward/ViewBackward0",
            4,
        );
    }

    fn post_layer_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let class = "v1.post_backward/RegisterFSDPBackwardFunctionBackward";
        w.operator("v1.tree_map_outputs", class, 2);
        let parameters = Self::unit_parameters(plan, layer);
        w.python("v1.param_loops", "v1.post_backward/python", parameters);
        self.release(plan, layer);
    }

    fn accumulate(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        microbatch: u16,
        group: usize,
        index: usize,
        arrived: usize,
    ) {
        let cause = "v1.param_hook";
        let numel = plan.groups[group].parameters[index].numel;
        w.operator(cause, "autograd.accumulate/aten::detach", 4);
        w.python(cause, "v1.param_hook/python", 1);
        let sharded = plan.inner_size(&plan.groups[group]) > 1;
        if arrived == 1 && sharded {
            w.operator("v1.grad_bucket", "v1.param_hook/aten::empty", 1);
        }
        w.operator(cause, "v1.param_hook/aten::slice", 2);
        w.operator(cause, "v1.param_hook/aten::view", 1);
        if !plan.wgrad_fusion || numel <= plan.dims.hidden {
            let compute = w.streams.compute;
            let pack = "v1.grad_pack";
            if sharded {
                let bytes = (BF16 + plan.main_grad_bytes) * numel;
                let copy = bytes_kernel("pack", KernelClass::Copy, bytes);
                w.kernel_operator(pack, "v1.param_hook/aten::copy_", 1, compute, copy);
            } else {
                let bytes = (BF16 + 2 * plan.main_grad_bytes) * numel;
                let add = bytes_kernel("pack", KernelClass::Elementwise, bytes);
                w.kernel_operator(pack, "v1.param_hook/aten::add_", 1, compute, add);
            }
        }
        w.python(cause, "v1.param_hook.end/python", 1);
        if arrived == plan.groups[group].parameters.len() {
            self.reduce(w, plan, microbatch, group);
        }
    }

    fn post_backward(&mut self, w: &mut Writer, plan: &Plan, _: u16) {
        let streams = w.streams;
        w.unit("root");
        // The compute stream waits for every reduction; Python resets every parameter twice.
        w.wait_stream("v1.reduce_wait", streams.compute, streams.reduce);
        if plan.mesh.outer > 1 {
            w.wait_stream("v1.reduce_wait", streams.compute, streams.outer_reduce);
        }
        w.python(
            "v1.main_grad_reset",
            "v1.root_post_backward/python",
            plan.parameter_count(),
        );
    }

    fn finalize(&mut self, w: &mut Writer, plan: &Plan) {
        w.python(
            "v1.main_grad_reset",
            "v1.finalize/python",
            plan.parameter_count(),
        );
        for _ in 0..plan.parameter_count() {
            w.operator("v1.grad_attach", "v1.update_main_grads/aten::slice", 2);
            w.operator("v1.grad_attach", "v1.update_main_grads/aten::view", 1);
        }
        w.python(
            "v1.param_swap",
            "v1.param_swap/python",
            plan.parameter_count(),
        );
    }

    fn optimizer(&mut self, w: &mut Writer, plan: &Plan) {
        let (local, elements) = (plan.local_parameters(), plan.optimizer_elements());
        w.python(
            "optimizer.grad_norm",
            "v1.optimizer/python",
            plan.parameter_count(),
        );
        if plan.clip {
            optimizer::global_norm(w, "optimizer.grad_norm", elements);
            optimizer::clip(w, "optimizer.clip", local, elements);
        }
        optimizer::adam(w, "optimizer.adam", local, elements, 24);
        let cause = "v1.main_to_model";
        for group in &plan.groups {
            w.unit(&group.unit.clone());
            for parameter in &group.parameters {
                w.operator(cause, "v1.main_to_model/aten::slice", 2);
                w.operator(cause, "v1.main_to_model/aten::slice", 2);
                if parameter.local {
                    w.operator(cause, "v1.main_to_model/aten::view", 1);
                    let shard = plan.inner_shard(group) / plan.outer_size(group);
                    let bytes = 6 * shard / group.local_parameters().max(1);
                    let cast = bytes_kernel("cast", KernelClass::Cast, bytes);
                    let compute = w.streams.compute;
                    w.kernel_operator(cause, "v1.main_to_model/aten::copy_", 1, compute, cast);
                }
            }
        }
        w.at(Phase::Optimizer, "root");
        w.python(
            "v1.param_swap",
            "v1.param_swap_back/python",
            plan.parameter_count(),
        );
        self.buckets.fill(Bucket::Empty);
        self.held = 0;
        for group in self.to_gather(plan, 0, true) {
            self.gather(w, plan, group, true);
        }
    }
}
