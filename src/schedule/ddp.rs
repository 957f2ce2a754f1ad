//! Plain `DistributedDataParallel` with the distributed optimizer: gradients accumulate in a flat
//! buffer, one reduce-scatter a buffer at the end, one all-gather a buffer after the optimizer.

use crate::program::{Collective, KernelClass, Phase};

use super::hooks::Hooks;
use super::optimizer;
use super::plan::{DdpBuffer, Plan};
use super::writer::{Call, Writer, bytes_kernel};

/// Bytes of a gradient and of a weight in the flat buffers (bf16).
const BF16: u64 = 2;

/// Plain DDP.
#[derive(Debug, Default)]
pub struct Ddp;

impl Hooks for Ddp {
    fn zero_grad(&mut self, w: &mut Writer, plan: &Plan) {
        let compute = w.streams.compute;
        w.python(
            "ddp.zero_grad",
            "ddp.zero_grad/python",
            plan.parameter_count(),
        );
        for buffer in &plan.ddp_buffers {
            let fill = bytes_kernel("zero", KernelClass::Fill, buffer.numel * BF16);
            w.kernel_operator(
                "ddp.zero_grad",
                "ddp.zero_grad/aten::zero_",
                2,
                compute,
                fill,
            );
        }
    }

    fn pre_model(&mut self, _: &mut Writer, _: &Plan, _: u16) {}
    fn pre_layer(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    fn post_layer(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    fn post_model(&mut self, _: &mut Writer, _: &Plan, _: u16) {}
    fn pre_backward(&mut self, _: &mut Writer, _: &Plan, _: u16) {}
    fn pre_layer_backward(&mut self, _: &mut Writer, _: &Plan, _: u16, _: u64) {}
    fn post_backward(&mut self, _: &mut Writer, _: &Plan, _: u16) {}

    fn accumulate(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        _: u16,
        group: usize,
        index: usize,
        _: usize,
    ) {
        let numel = plan.groups[group].parameters[index].numel;
        let cause = "ddp.grad_accumulate";
        w.operator(cause, "autograd.accumulate/aten::detach", 4);
        let add = bytes_kernel("accumulate", KernelClass::Elementwise, 3 * BF16 * numel);
        let compute = w.streams.compute;
        w.kernel_operator(cause, "ddp.accumulate/aten::add_", 1, compute, add);
    }

    fn finalize(&mut self, w: &mut Writer, plan: &Plan) {
        let cause = "ddp.grad_reduce";
        for buffer in &plan.ddp_buffers {
            let stream = w.streams.compute;
            let bytes = buffer.numel * BF16;
            let scale = bytes_kernel("scale", KernelClass::Elementwise, 2 * bytes);
            w.kernel_operator(cause, "ddp.grad_reduce/aten::mul_", 1, stream, scale);
            w.operator(cause, "ddp.grad_reduce/aten::view", 1);
            let comm = if buffer.experts {
                w.comms.expert_inner
            } else {
                w.comms.inner
            };
            let call = Call {
                class: "ddp.grad_reduce/c10d::reduce_scatter_tensor_coalesced_",
                op: Collective::ReduceScatter,
                comm,
                ranks: 0,
                stream,
                bytes,
            };
            w.collective(cause, call);
        }
        w.python(cause, "ddp.finalize/python", plan.parameter_count());
    }

    fn optimizer(&mut self, w: &mut Writer, plan: &Plan) {
        let cause = "ddp.optimizer_copy";
        let buffers = &plan.ddp_buffers;
        w.at(Phase::Optimizer, "root");
        let mean = |buffer: &DdpBuffer| buffer.numel / buffer.shards / buffer.local.max(1);
        for buffer in buffers {
            for _ in 0..buffer.local {
                w.operator(cause, "ddp.grad_copy/aten::view", 1);
                w.operator(cause, "ddp.grad_copy/aten::slice", 2);
                let cast = bytes_kernel("cast", KernelClass::Cast, 6 * mean(buffer));
                let compute = w.streams.compute;
                w.kernel_operator(cause, "ddp.grad_copy/aten::to", 4, compute, cast);
            }
        }
        let locals: Vec<u64> = buffers.iter().map(|buffer| buffer.local).collect();
        let elements: Vec<u64> = buffers
            .iter()
            .map(|buffer| buffer.numel / buffer.shards)
            .collect();
        if plan.clip {
            optimizer::global_norm(w, "optimizer.grad_norm", elements.iter().sum());
            for (&local, &elements) in locals.iter().zip(&elements) {
                optimizer::clip(w, "optimizer.clip", local, elements);
            }
        }
        for (buffer, &elements) in buffers.iter().zip(&elements) {
            optimizer::adam(w, "optimizer.adam", &[(0, elements)], 24);
            w.python("optimizer.adam", "ddp.adam/python", buffer.local);
            for _ in 0..buffer.local {
                w.operator(cause, "ddp.weight_copy/aten::view", 1);
                w.operator(cause, "ddp.weight_copy/aten::slice", 2);
                let cast = bytes_kernel("cast", KernelClass::Cast, 6 * mean(buffer));
                let compute = w.streams.compute;
                w.kernel_operator(cause, "ddp.weight_copy/aten::copy_", 1, compute, cast);
            }
            // Each of the chained optimizers gathers every buffer.
            gather_weights(w, buffers);
        }
    }
}

fn gather_weights(w: &mut Writer, buffers: &[DdpBuffer]) {
    for buffer in buffers {
        let comm = if buffer.experts {
            w.comms.expert_inner
        } else {
            w.comms.inner
        };
        let call = Call {
            class: "ddp.param_gather/c10d::allgather_into_tensor_coalesced_",
            op: Collective::AllGather,
            comm,
            ranks: buffer.shards,
            stream: w.streams.compute,
            bytes: buffer.numel * BF16,
        };
        w.collective("ddp.param_gather", call);
    }
}
