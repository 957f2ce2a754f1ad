//! Proposals made upstream (NVIDIA/Megatron-LM), by plain name: what each changes in the Program.
//!
//! A proposal is expressed as edits of causes or as settings of the spec, so that its gain is
//! simulated. Where the simulation has no such part, it says so instead of answering.

use std::collections::BTreeMap;

use crate::program::{ActionKind, Phase};
use crate::schedule::plan;
use crate::spec::{Fsdp, TokenDispatcher, V2Build};

use super::edit::{Edit, Selector};
use super::what_if::{Change, Question, WhatIfError};

/// A proposal.
#[derive(Debug, Clone, Copy)]
pub struct Proposal {
    /// Name on the command line.
    pub name: &'static str,
    /// One line for people.
    pub title: &'static str,
    /// Where it was made.
    pub reference: &'static str,
    /// What exactly changes in the Program.
    pub changes: &'static str,
    express: fn(&Question<'_>) -> Result<Vec<Change>, String>,
}

impl Proposal {
    /// The proposal of a name.
    pub fn find(name: &str) -> Option<&'static Proposal> {
        PROPOSALS.iter().find(|proposal| proposal.name == name)
    }

    /// The changes that express it.
    ///
    /// # Errors
    /// [`WhatIfError::NotExpressible`] with the reason.
    pub fn express(&self, question: &Question<'_>) -> Result<Vec<Change>, WhatIfError> {
        (self.express)(question).map_err(|reason| WhatIfError::NotExpressible {
            what: self.name.to_owned(),
            reason,
        })
    }
}

/// Host work of a version 2 module, however many groups it has.
const V2_PER_MODULE: [&str; 3] = ["v2.module_hooks", "v2.nvtx", "v2.bwdhook_nodes"];

/// How much faster the host of `faster-host` is.
const FASTER_HOST: f64 = 1.25;

/// All proposals, in the order of the tables.
pub const PROPOSALS: [Proposal; 14] = [
    Proposal {
        name: "batched-grad-copy",
        title: "one batched gradient copy per group",
        reference: "pull request 6487",
        changes: "the per-parameter copies into the reduce-scatter buffer (v2.pack_copy_per_param) \
                  become one call and one launch per group and microbatch; device time is the sum",
        express: |question| {
            only_v2(question)?;
            Ok(edits([Edit::Batch(Selector::cause(
                "v2.pack_copy_per_param",
            ))]))
        },
    },
    Proposal {
        name: "cached-local-views",
        title: "cached local views",
        reference: "pull request 6487",
        changes: "the narrow and view operators that find a parameter's part of a buffer \
                  (v2.local_view_math) are not done again in unshard, pack and rebind",
        express: |question| {
            only_v2(question)?;
            Ok(edits([Edit::Remove(Selector::cause("v2.local_view_math"))]))
        },
    },
    Proposal {
        name: "cached-grad-dtensors",
        title: "cached gradient DTensors",
        reference: "pull request 6488",
        changes: "no DTensor is built from a local shard for every parameter and microbatch \
                  (v2.dtensor_rebind), nor the view that it wraps (v2.local_view_math of the rebind)",
        express: |question| {
            only_v2(question)?;
            Ok(edits([
                Edit::Remove(Selector::cause("v2.dtensor_rebind")),
                Edit::Remove(Selector::cause("v2.local_view_math").class("v2.rebind")),
            ]))
        },
    },
    Proposal {
        name: "local-tensors",
        title: "local tensors, no DTensors in training",
        reference: "pull request 7322",
        changes: "as cached-grad-dtensors, and parameters are not switched between their sharded \
                  DTensor and their gathered form (v2.param_switch)",
        express: |question| {
            only_v2(question)?;
            Ok(edits([
                Edit::Remove(Selector::cause("v2.dtensor_rebind")),
                Edit::Remove(Selector::cause("v2.local_view_math").class("v2.rebind")),
                Edit::Remove(Selector::cause("v2.param_switch")),
            ]))
        },
    },
    Proposal {
        name: "wgrad-fusion",
        title: "weight-gradient fusion",
        reference: "pull request 7101",
        changes: "weight-gradient GEMMs of linear layers write into the reduce-scatter buffer: no \
                  view and no copy for these (v2.pack_copy_per_param, v2.local_view_math of the \
                  pack); norms, router, embedding and head are copied as before",
        express: |question| {
            only_v2(question)?;
            let linear = linear_parameters(question);
            let fused = |cause: &str| Selector {
                parameters: Some(linear.clone()),
                ..Selector::cause(cause)
            };
            Ok(edits([
                Edit::Remove(fused("v2.pack_copy_per_param")),
                Edit::Remove(fused("v2.local_view_math").class("v2.pack")),
            ]))
        },
    },
    Proposal {
        name: "outer-reduction-stream",
        title: "outer reduction on its own stream",
        reference: "pull request 6973",
        changes: "the outer reduce-scatters (v2.outer_reduce) leave the reduce-scatter stream; \
                  compute waits for them before finalize",
        express: |question| {
            only_v2(question)?;
            if question.spec.outer_size() == 1 {
                return Err(
                    "the mesh has no outer group; set `ddp.num_distributed_optimizer_instances`"
                        .to_owned(),
                );
            }
            let outer = Selector::cause("v2.outer_reduce");
            Ok(edits([Edit::OwnStream(outer, Phase::Finalize)]))
        },
    },
    Proposal {
        name: "two-communicators",
        title: "all-gather and reduce-scatter on two communicators",
        reference: "pull request 5772",
        changes: "the all-gathers (v2.unshard, v1.gather) get communicators of their own and no \
                  longer queue behind reduce-scatters of the same group",
        express: |question| {
            let cause = match question.fsdp {
                Fsdp::V1 => "v1.gather",
                Fsdp::V2 => "v2.unshard",
                Fsdp::Ddp => return Err("DDP has no reduction beside a gather".to_owned()),
            };
            Ok(edits([Edit::OwnCommunicator(Selector::cause(cause))]))
        },
    },
    Proposal {
        name: "optimizer-graph",
        title: "the optimizer as a CUDA graph",
        reference: "pull requests 6498 and 7446",
        changes: "one launch replaces the host work of the optimizer phase, clipping included; the \
                  device runs the same kernels",
        express: |_| Ok(edits([Edit::Graph("optimizer")])),
    },
    Proposal {
        name: "full-iteration-graph",
        title: "the whole iteration as a CUDA graph",
        reference: "pull request 7075",
        changes: "one launch replaces the host work of forward, backward and finalize; not with a \
                  dispatcher that reads sizes on the host",
        express: |question| {
            let model = &question.spec.model;
            if model.num_moe_experts.is_some()
                && model.moe_token_dispatcher_type == TokenDispatcher::AllToAll
            {
                return Err(
                    "the alltoall dispatcher reads token counts on the host, which no graph can \
                     capture; ask with a spec whose dispatcher is \"flex\""
                        .to_owned(),
                );
            }
            let phases = ["forward", "backward", "finalize"];
            Ok(edits(phases.map(Edit::Graph)))
        },
    },
    Proposal {
        name: "symmetric-memory",
        title: "communication buffers in symmetric memory",
        reference: "Megatron-Core option nccl_ub",
        changes: "`ddp.nccl_ub=true`: collectives of the data-parallel groups run on registered \
                  buffers",
        express: |_| Ok(vec![Change::Set("ddp.nccl_ub=true".to_owned())]),
    },
    Proposal {
        name: "prefetch-budget",
        title: "prefetch by elements instead of one module",
        reference: "pull request 6905",
        changes: "`ddp.v2_forward_prefetch_elements` and its backward twin at 500,000,000 elements, \
                  version 1's default budget",
        express: |question| {
            only_v2(question)?;
            if question.spec.ddp.v2_build == V2Build::Aug {
                return Err("the build `aug` has no prefetch budget; \
                            ask with `--base-set ddp.v2_build=sep`"
                    .to_owned());
            }
            let fields = [
                "v2_forward_prefetch_elements",
                "v2_backward_prefetch_elements",
            ];
            let set = |field| Change::Set(format!("ddp.{field}=500000000"));
            Ok(fields.map(set).to_vec())
        },
    },
    Proposal {
        name: "merge-experts",
        title: "the experts' unit merged into the layer's",
        reference: "issue 7264: eight modules against version 1's four units",
        changes: "expert modules have no hooks, ranges and autograd nodes of their own \
                  (v2.module_hooks, v2.nvtx, v2.bwdhook_nodes); their group keeps its buffers and \
                  collectives, since experts live on another mesh",
        express: |question| {
            only_v2(question)?;
            let present = |cause: &&&str| {
                let program = &question.base.program;
                let tags = program.tags.iter();
                tags.filter(|tag| tag.unit.ends_with(".experts"))
                    .any(|tag| program.cause_name(tag.cause) == **cause)
            };
            let edit = |cause: &&str| {
                let experts = Selector::cause(cause).unit(".experts");
                Change::Edit(Edit::ScaleHost(experts, 0.0))
            };
            let changes: Vec<Change> = V2_PER_MODULE.iter().filter(present).map(edit).collect();
            match changes.is_empty() {
                true => Err("the model has no expert modules".to_owned()),
                false => Ok(changes),
            }
        },
    },
    Proposal {
        name: "faster-host",
        title: "a host 1.25 times as fast",
        reference: "hardware, no pull request",
        changes: "all host work takes 1/1.25 of its time",
        express: |_| Ok(edits([Edit::HostSpeed(FASTER_HOST)])),
    },
    Proposal {
        name: "no-pauses",
        title: "no garbage-collection pauses",
        reference: "manual garbage collection, Megatron option --manual-gc",
        changes: "long pauses of the host are left out of the jitter",
        express: |_| Ok(edits([Edit::NoPauses])),
    },
];

fn edits<const N: usize>(edits: [Edit; N]) -> Vec<Change> {
    edits.map(Change::Edit).to_vec()
}

fn only_v2(question: &Question<'_>) -> Result<(), String> {
    match question.fsdp {
        Fsdp::V2 => Ok(()),
        other => Err(format!(
            "it changes version 2, and this step is that of {}",
            other.name()
        )),
    }
}

/// Which parameters of each unit are weights of linear layers, in their order.
fn linear_parameters(question: &Question<'_>) -> BTreeMap<String, Vec<bool>> {
    let linear = |name: &str| {
        let others = ["norm", "router", "embedding", "output_layer"];
        !others.iter().any(|other| name.contains(other))
    };
    plan(question.spec, 0)
        .groups
        .iter()
        .map(|group| {
            let parameters = group.parameters.iter();
            let list = parameters.map(|parameter| linear(&parameter.name));
            (group.unit.clone(), list.collect())
        })
        .collect()
}

/// Causes of the Program that could be removed one by one: those with host work, launches,
/// collectives or waits.
pub fn removable_causes(question: &Question<'_>) -> Vec<String> {
    let program = &question.base.program;
    let prices = &question.base.prices;
    let mut does = vec![false; program.causes.len()];
    for class in 0..program.classes.len() {
        for (_, action) in program.actions(class) {
            let works = prices.host[action.host.index()].centre_ns > 0.0;
            let acts = matches!(
                action.kind,
                ActionKind::Launch { .. } | ActionKind::Collective { .. }
            );
            does[program.tag(action).cause.index()] |= works || acts;
        }
    }
    let mut causes: Vec<String> = program
        .causes
        .iter()
        .zip(does)
        .filter(|(_, does)| *does)
        .map(|(cause, _)| cause.clone())
        .collect();
    causes.sort();
    causes
}
