//! What version 2 does with the gradients of a module: packing, reduction, DTensors, norm.

use crate::program::{Collective, KernelClass, StreamId};

use super::super::optimizer;
use super::super::plan::Plan;
use super::super::writer::{Call, Writer, bytes_kernel};
use super::{BF16, V2};

impl V2 {
    pub(super) fn post_module_backward(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        microbatch: u16,
        index: usize,
    ) {
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

    /// `aug`: one all-reduce of a norm that clipping then skips. `sep`: a Python loop over the
    /// parameters with four kernels for each non-empty shard, then a multi-tensor scale.
    pub(super) fn clip(&self, w: &mut Writer, plan: &Plan, local: u64, elements: u64) {
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
