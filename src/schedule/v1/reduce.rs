//! Reduction of version 1's gradient buckets.

use crate::program::{Collective, KernelClass};

use super::super::plan::Plan;
use super::super::writer::{Call, Writer, bytes_kernel};
use super::V1;

impl V1 {
    /// Scales, reduce-scatters and accumulates a bucket whose gradients have all arrived.
    pub(super) fn reduce(&mut self, w: &mut Writer, plan: &Plan, microbatch: u16, index: usize) {
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
        let mut done = w.record(cause, "cuda.event_record", stream);
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
            done = w.record(cause, "cuda.event_record", streams.outer_reduce);
        }
        self.reduced.push(done);
    }
}
