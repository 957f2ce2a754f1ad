//! Megatron-FSDP v1: units of whole layers, one bucket a parameter group, gradient hooks in Python
//! for every parameter, gathers of everything ahead that fits the prefetch budget.
//!
//! The order follows `megatron_fsdp.py` and `param_and_grad_buffer.py` of Megatron-LM d98e8a64.

mod gather;
mod reduce;

use crate::program::{EventId, KernelClass, Phase, ProgramBuilder};

use super::hooks::Hooks;
use super::optimizer;
use super::plan::Plan;
use super::writer::{Writer, bytes_kernel};

/// Bytes of a weight (bf16).
const BF16: u64 = 2;

/// State of a bucket's gathered weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bucket {
    /// Released.
    Empty,
    /// The all-gather is enqueued; no stream has waited for it.
    Communicating,
    /// The compute stream has waited for it.
    Ready,
}

/// Megatron-FSDP v1.
#[derive(Debug)]
pub struct V1 {
    buckets: Vec<Bucket>,
    /// End of the last all-gather of each bucket. One event a bucket for all steps: the first gathers
    /// of a step were enqueued by the step before.
    gathered: Vec<EventId>,
    /// End of each reduction of the running backward, in the order in which they were enqueued.
    reduced: Vec<EventId>,
    /// Elements gathered and not yet released, for the prefetch budget.
    held: u64,
}

impl V1 {
    /// At the start of a step everything that the budget allows was gathered by the step before.
    pub fn new(plan: &Plan, program: &mut ProgramBuilder) -> Self {
        let mut state = V1 {
            buckets: vec![Bucket::Empty; plan.groups.len()],
            gathered: plan.groups.iter().map(|_| program.event()).collect(),
            reduced: Vec::new(),
            held: 0,
        };
        for group in state.to_gather(plan, 0, true) {
            state.take(plan, group);
        }
        state
    }
}

/// Groups of a layer: its experts, if any, follow its other parameters.
fn layer_groups(plan: &Plan, layer: u64) -> Vec<usize> {
    (0..plan.groups.len())
        .filter(|&index| plan.groups[index].layer == Some(layer))
        .collect()
}

fn unit_parameters(plan: &Plan, layer: u64) -> u64 {
    let groups = layer_groups(plan, layer);
    groups
        .iter()
        .map(|&group| plan.groups[group].parameters.len() as u64)
        .sum()
}

/// Groups outside layers.
fn root_groups(plan: &Plan) -> Vec<usize> {
    (0..plan.groups.len())
        .filter(|&index| plan.groups[index].layer.is_none())
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
        self.wait(w, plan, &root_groups(plan));
    }

    fn pre_layer(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, layer: u64) {
        w.python("v1.module_hooks", "v1.pre_forward/python", 1);
        self.ensure(w, plan, &layer_groups(plan, layer), true, microbatch == 0);
        w.operator(
            "v1.tree_map_outputs",
            "v1.pre_forward/RegisterFSDPBackwardFunction",
            3,
        );
    }

    fn post_layer(&mut self, w: &mut Writer, plan: &Plan, _: u16, layer: u64) {
        let parameters = unit_parameters(plan, layer);
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
        let mut needed = layer_groups(plan, layer);
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
        let parameters = unit_parameters(plan, layer);
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
        w.unit("root");
        // The compute stream waits for every reduction; Python resets every parameter twice.
        let compute = w.streams.compute;
        for event in std::mem::take(&mut self.reduced) {
            w.wait_event("v1.reduce_wait", "cuda.wait_event", compute, event);
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
        optimizer::adam(w, "optimizer.adam", &plan.decay_groups(), 24);
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
