//! Which buckets version 1 gathers when, and who waits for them.

use crate::program::Collective;

use super::super::plan::Plan;
use super::super::writer::{Call, Writer};
use super::{BF16, Bucket, V1, layer_groups};

impl V1 {
    pub(super) fn take(&mut self, plan: &Plan, group: usize) {
        self.buckets[group] = Bucket::Communicating;
        if plan.groups[group].layer.is_some() {
            self.held += plan.groups[group].padded_numel;
        }
    }

    pub(super) fn release(&mut self, plan: &Plan, layer: u64) {
        for group in layer_groups(plan, layer) {
            if self.buckets[group] != Bucket::Empty {
                self.buckets[group] = Bucket::Empty;
                self.held -= plan.groups[group].padded_numel;
            }
        }
    }

    /// Buckets to gather when `needed` is asked for: it and what lies ahead (later ids forward,
    /// earlier ids backward) within the budget, none that is gathered already.
    pub(super) fn to_gather(&self, plan: &Plan, needed: usize, forward: bool) -> Vec<usize> {
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
            if self.buckets[group] != Bucket::Empty {
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
    pub(super) fn gather(&mut self, w: &mut Writer, plan: &Plan, index: usize, outer: bool) {
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
        w.mark("v1.gather", streams.gather, self.gathered[index]);
        self.take(plan, index);
    }

    /// Gathers what is missing, then lets the compute stream wait for the needed bucket, parameter
    /// by parameter in Python.
    pub(super) fn ensure(
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
        for group in chosen {
            self.gather(w, plan, group, outer);
        }
        w.unit(&unit);
        self.wait(w, plan, needed);
    }

    /// `wait_bucket_ready`: Python looks at every parameter; the first of a bucket that is still
    /// communicating lets the compute stream wait for the end of that bucket's all-gather, and for
    /// no later one. The call waits for the collective's own event and is part of the loop's cost.
    pub(super) fn wait(&mut self, w: &mut Writer, plan: &Plan, needed: &[usize]) {
        for &group in needed {
            if self.buckets[group] == Bucket::Communicating {
                w.wait_mark("v1.gather_wait", w.streams.compute, self.gathered[group]);
                self.buckets[group] = Bucket::Ready;
            }
            let parameters = plan.groups[group].parameters.len() as u64;
            w.python("v1.param_loops", "v1.wait_bucket/python", parameters);
        }
    }
}

/// Buckets in the order in which backward prefetch considers them: descending ids, so a layer's
/// experts come before its other parameters.
fn backward_order(plan: &Plan) -> Vec<usize> {
    (0..plan.groups.len())
        .rev()
        .filter(|&group| plan.groups[group].layer.is_some())
        .collect()
}
