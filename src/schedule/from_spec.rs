//! Turns a spec into a [`Plan`].

use crate::model::{Axis, Dims, Mesh, parameter_groups, parameters};
use crate::spec::{Fsdp, Spec, TokenDispatcher, V2Build};

use super::plan::{DdpBuffer, Group, GroupParameter, LayerKind, MeshSizes, Plan};

/// Elements that v1 gathers ahead when no communication unit size is set: half of the unit size of
/// 1e9 (`MegatronFSDP`, `suggested_communication_unit_size`).
const V1_COMMUNICATION_UNIT_ELEMENTS: u64 = 1_000_000_000;

/// The plan of `rank` under the schedule that the spec selects.
pub fn plan(spec: &Spec, rank: u64) -> Plan {
    let dims = dims(spec);
    let mesh = mesh(spec);
    let layers: Vec<LayerKind> = (0..spec.model.num_layers)
        .map(|layer| match spec.model.is_moe_layer(layer) {
            true => LayerKind::Moe,
            false => LayerKind::Dense,
        })
        .collect();
    let unit_elements = spec
        .ddp
        .suggested_communication_unit_size
        .unwrap_or(V1_COMMUNICATION_UNIT_ELEMENTS);
    let v2_sep = spec.ddp.v2_build == V2Build::Sep;
    Plan {
        groups: groups(spec, rank),
        ddp_buffers: ddp_buffers(spec, rank),
        microbatches: spec.num_microbatches().min(u64::from(u16::MAX)) as u16,
        main_grad_bytes: spec.main_grads_dtype().bytes(),
        v1_prefetch_elements: unit_elements / 2,
        wgrad_fusion: spec.ddp.gradient_accumulation_fusion,
        v1_buffers: spec.ddp.fsdp_double_buffer.then_some(2),
        v2_forward_prefetch: 1,
        v2_backward_prefetch: 1,
        v2_one_communication_stream: spec.ddp.v2_unify_communication_stream,
        v2_outer_every_microbatch: spec.ddp.v2_outer_rs_every_microbatch,
        v2_sep,
        average_in_collective: spec.ddp.average_in_collective,
        clip: spec.optimizer.clip_grad > 0.0,
        expert_bias: spec.model.moe_router_enable_expert_bias,
        host_counts: spec.model.moe_token_dispatcher_type == TokenDispatcher::AllToAll,
        separate_gather_group: spec.ddp.create_all_gather_group && spec.fsdp() == Fsdp::V1,
        dims,
        layers,
        mesh,
    }
}

fn dims(spec: &Spec) -> Dims {
    let model = &spec.model;
    let mla = model.mla();
    let head = model.head_dim();
    Dims {
        tokens: spec.train.seq_length * spec.train.micro_batch_size,
        seq: spec.train.seq_length,
        batch: spec.train.micro_batch_size,
        hidden: model.hidden_size,
        heads: model.num_attention_heads,
        kv_heads: if mla.is_some() {
            model.num_attention_heads
        } else {
            model.query_groups()
        },
        mla: mla.is_some(),
        qk_dim: mla.map_or(head, |mla| mla.qk_head_dim),
        rope_dim: mla.map_or(0, |mla| mla.qk_pos_emb_head_dim),
        v_dim: mla.map_or(head, |mla| mla.v_head_dim),
        q_rank: mla.and_then(|mla| mla.q_lora_rank).unwrap_or(0),
        kv_rank: mla.map_or(0, |mla| mla.kv_lora_rank),
        ffn: model.ffn_hidden_size,
        experts: model.num_moe_experts.unwrap_or(0),
        local_experts: spec.local_experts(),
        topk: model.moe_router_topk,
        moe_ffn: model.expert_ffn_hidden_size(),
        shared_ffn: model.moe_shared_expert_intermediate_size.unwrap_or(0),
        vocab: model.vocab_size,
        layers: model.num_layers,
    }
}

fn mesh(spec: &Spec) -> MeshSizes {
    let mesh = Mesh::new(spec);
    let (inner, outer) = mesh.sizes(false);
    let (expert_inner, expert_outer) = mesh.sizes(true);
    MeshSizes {
        world: spec.parallel.world_size,
        inner,
        outer,
        expert_inner,
        expert_outer,
        expert_parallel: mesh.size(Axis::ExpertParallel),
    }
}

/// The groups of the schedule, with what `rank` owns of them. Plain DDP has no groups of its own;
/// its gradients arrive by the owners that version 1 has.
fn groups(spec: &Spec, rank: u64) -> Vec<Group> {
    let mut owners = spec.clone();
    if spec.fsdp() == Fsdp::Ddp {
        owners.set_fsdp(Fsdp::V1);
        owners.ddp.bucket_size = None;
    }
    let (mesh, parameters) = (Mesh::new(spec), parameters(spec));
    parameter_groups(&owners, &parameters)
        .into_iter()
        .map(|group| {
            let shard = group.optimizer_shard(&mesh, rank);
            let member = |(&member, &elements): (&usize, &u64)| GroupParameter {
                name: parameters[member].name.clone(),
                numel: parameters[member].numel(),
                local: elements > 0,
                decays: parameters[member].shape.len() > 1,
            };
            Group {
                parameters: group.members.iter().zip(&shard).map(member).collect(),
                unit: group.name,
                layer: group.layer,
                experts: group.experts,
                padded_numel: group.layout.size,
            }
        })
        .collect()
}

/// The flat buffers of plain DDP.
fn ddp_buffers(spec: &Spec, rank: u64) -> Vec<DdpBuffer> {
    let mut spec = spec.clone();
    spec.set_fsdp(Fsdp::Ddp);
    let (mesh, parameters) = (Mesh::new(&spec), parameters(&spec));
    parameter_groups(&spec, &parameters)
        .into_iter()
        .filter(|group| !group.members.is_empty())
        .map(|group| {
            let owned = group.optimizer_shard(&mesh, rank);
            let (inner, outer) = mesh.sizes(group.experts);
            DdpBuffer {
                experts: group.experts,
                numel: group.layout.size,
                shards: inner * outer,
                local: owned.iter().filter(|&&elements| elements > 0).count() as u64,
            }
        })
        .collect()
}
