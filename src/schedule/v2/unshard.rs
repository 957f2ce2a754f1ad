//! Gathering and releasing the modules of version 2, one ahead.

use crate::program::Collective;

use super::super::plan::Plan;
use super::super::writer::{Call, Writer};
use super::{BF16, V2};

impl V2 {
    pub(super) fn unshard(&mut self, w: &mut Writer, plan: &Plan, index: usize) {
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

    pub(super) fn reshard(&mut self, w: &mut Writer, plan: &Plan, index: usize) {
        let parameters = plan.groups[index].parameters.len() as u64;
        w.python("v2.param_switch", "v2.param_switch/python", parameters);
        let (stream, compute) = (Self::gather_stream(w), w.streams.compute);
        w.wait_stream("v2.stream_event_ops", stream, compute);
        self.unsharded[index] = None;
    }

    /// Waits for the module's own gather and starts those of the next modules in `order`.
    pub(super) fn enter(
        &mut self,
        w: &mut Writer,
        plan: &Plan,
        order: &[usize],
        index: usize,
        ahead: u64,
    ) {
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

    pub(super) fn leave(&mut self, w: &mut Writer, plan: &Plan, index: usize) {
        w.python("v2.module_hooks", "v2.leave/python", 1);
        self.reshard(w, plan, index);
    }
}
