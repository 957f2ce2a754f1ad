//! Plain `DistributedDataParallel` with the distributed optimizer: gradients accumulate in a flat
//! buffer, one reduce-scatter a buffer at the end, one all-gather a buffer after the optimizer.

use crate::program::{Collective, KernelClass, Phase};

use super::hooks::Hooks;
use super::optimizer;
use super::plan::{Group, Plan};
use super::writer::{Call, Writer, bytes_kernel};

/// Bytes of a gradient and of a weight in the flat buffers (bf16).
const BF16: u64 = 2;

/// Plain DDP.
#[derive(Debug, Default)]
pub struct Ddp;

/// One flat buffer: dense or expert parameters.
struct Buffer {
    experts: bool,
    numel: u64,
    local: u64,
}

/// The two flat buffers, dense first; a model without experts has one.
fn buffers(plan: &Plan) -> Vec<Buffer> {
    [false, true]
        .into_iter()
        .filter_map(|experts| {
            let groups: Vec<&Group> = plan
                .groups
                .iter()
                .filter(|group| group.experts == experts)
                .collect();
            let numel: u64 = groups.iter().map(|group| group.padded_numel).sum();
            let ranks = shards(plan, experts);
            (numel > 0).then(|| Buffer {
                experts,
                numel,
                local: local(&groups, numel / ranks),
            })
        })
        .collect()
}

/// Ranks over which the distributed optimizer shards a buffer.
fn shards(plan: &Plan, experts: bool) -> u64 {
    let mesh = &plan.mesh;
    if experts {
        mesh.expert_inner * mesh.expert_outer
    } else {
        mesh.inner * mesh.outer
    }
}

/// Parameters that overlap the first `shard` elements of a buffer filled in reverse order of
/// registration: those of rank 0. The head is registered last although it is in the root group.
fn local(groups: &[&Group], shard: u64) -> u64 {
    let (root, layers): (Vec<&Group>, Vec<&Group>) =
        groups.iter().partition(|group| group.layer.is_none());
    let head = root
        .iter()
        .flat_map(|group| group.parameters.iter().skip(1).rev());
    let body = layers
        .iter()
        .rev()
        .flat_map(|group| group.parameters.iter().rev());
    let embedding = root
        .iter()
        .flat_map(|group| group.parameters.iter().take(1));
    let mut filled = 0;
    head.chain(body)
        .chain(embedding)
        .take_while(|parameter| {
            let before = filled;
            filled += parameter.numel;
            before < shard
        })
        .count() as u64
}

impl Hooks for Ddp {
    fn zero_grad(&mut self, w: &mut Writer, plan: &Plan) {
        let compute = w.streams.compute;
        w.python(
            "ddp.zero_grad",
            "ddp.zero_grad/python",
            plan.parameter_count(),
        );
        for buffer in buffers(plan) {
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
        for buffer in buffers(plan) {
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
        let buffers = buffers(plan);
        w.at(Phase::Optimizer, "root");
        let mean =
            |buffer: &Buffer| buffer.numel / shards(plan, buffer.experts) / buffer.local.max(1);
        for buffer in &buffers {
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
            .map(|buffer| buffer.numel / shards(plan, buffer.experts))
            .collect();
        if plan.clip {
            optimizer::global_norm(w, "optimizer.grad_norm", elements.iter().sum());
            for (&local, &elements) in locals.iter().zip(&elements) {
                optimizer::clip(w, "optimizer.clip", local, elements);
            }
        }
        for (buffer, &elements) in buffers.iter().zip(&elements) {
            optimizer::adam(w, "optimizer.adam", 0, elements, 24);
            w.python("optimizer.adam", "ddp.adam/python", buffer.local);
            for _ in 0..buffer.local {
                w.operator(cause, "ddp.weight_copy/aten::view", 1);
                w.operator(cause, "ddp.weight_copy/aten::slice", 2);
                let cast = bytes_kernel("cast", KernelClass::Cast, 6 * mean(buffer));
                let compute = w.streams.compute;
                w.kernel_operator(cause, "ddp.weight_copy/aten::copy_", 1, compute, cast);
            }
            // Each of the chained optimizers gathers every buffer.
            gather_weights(w, plan, &buffers);
        }
    }
}

fn gather_weights(w: &mut Writer, plan: &Plan, buffers: &[Buffer]) {
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
            ranks: shards(plan, buffer.experts),
            stream: w.streams.compute,
            bytes: buffer.numel * BF16,
        };
        w.collective("ddp.param_gather", call);
    }
}
