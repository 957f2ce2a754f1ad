//! Turns a spec into a [`Plan`].

use crate::model::Dims;
use crate::spec::{OuterSharding, Spec, TokenDispatcher, V2Build};

use super::plan::{Group, GroupParameter, LayerKind, MeshSizes, Plan};

/// Elements that v1 gathers ahead when no communication unit size is set: half of the unit size of
/// 1e9 (`MegatronFSDP`, `suggested_communication_unit_size`).
const V1_COMMUNICATION_UNIT_ELEMENTS: u64 = 1_000_000_000;

/// The plan of rank 0.
pub fn plan(spec: &Spec) -> Plan {
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
        groups: groups(spec, &dims, &layers, &mesh),
        microbatches: spec.num_microbatches().min(u64::from(u16::MAX)) as u16,
        main_grad_bytes: spec.main_grads_dtype().bytes(),
        v1_prefetch_elements: unit_elements / 2,
        v1_reduce_queue_elements: unit_elements,
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
        separate_gather_group: spec.ddp.create_all_gather_group,
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
    let outer = match spec.ddp.outer_dp_sharding_strategy {
        OuterSharding::NoShard if spec.outer_size() == 1 => 1,
        _ => spec.outer_size(),
    };
    let expert_dp = spec.expert_data_parallel_size();
    // Experts share the number of instances: their inner mesh is what remains, at least one rank.
    let expert_outer = outer.min(expert_dp);
    MeshSizes {
        world: spec.parallel.world_size,
        inner: spec.inner_size(),
        outer,
        expert_inner: expert_dp / expert_outer,
        expert_outer,
        expert_parallel: spec.parallel.expert_model_parallel_size,
    }
}

fn groups(spec: &Spec, d: &Dims, layers: &[LayerKind], mesh: &MeshSizes) -> Vec<Group> {
    let mut groups = vec![group("root", None, false, root_parameters(d), mesh)];
    let _ = spec;
    for (index, kind) in layers.iter().enumerate() {
        let layer = index as u64;
        let unit = format!("layers.{layer}");
        let prefix = format!("decoder.{unit}.");
        let dense = layer_parameters(d, *kind, &prefix);
        groups.push(group(&unit, Some(layer), false, dense, mesh));
        if *kind == LayerKind::Moe {
            let experts = expert_parameters(d, &prefix);
            groups.push(group(
                &format!("{unit}.experts"),
                Some(layer),
                true,
                experts,
                mesh,
            ));
        }
    }
    groups
}

fn group(
    unit: &str,
    layer: Option<u64>,
    experts: bool,
    parameters: Vec<(String, u64)>,
    mesh: &MeshSizes,
) -> Group {
    let ranks = if experts {
        mesh.expert_inner * mesh.expert_outer
    } else {
        mesh.inner * mesh.outer
    };
    let numel: u64 = parameters.iter().map(|(_, numel)| numel).sum();
    let padded_numel = numel.next_multiple_of(ranks);
    let shard = padded_numel / ranks;
    let mut start = 0;
    let parameters = parameters
        .into_iter()
        .map(|(name, numel)| {
            let local = start < shard;
            start += numel;
            GroupParameter { name, numel, local }
        })
        .collect();
    Group {
        unit: unit.to_owned(),
        layer,
        experts,
        parameters,
        padded_numel,
    }
}

fn root_parameters(d: &Dims) -> Vec<(String, u64)> {
    vec![
        (
            "embedding.word_embeddings.weight".into(),
            d.vocab * d.hidden,
        ),
        ("decoder.final_layernorm.weight".into(), d.hidden),
        ("output_layer.weight".into(), d.vocab * d.hidden),
    ]
}

fn layer_parameters(d: &Dims, kind: LayerKind, prefix: &str) -> Vec<(String, u64)> {
    let h = d.hidden;
    let qk = d.qk_dim + d.rope_dim;
    let mut list = vec![("input_layernorm.weight", h)];
    if d.mla {
        list.extend([
            ("self_attention.linear_proj.weight", h * d.heads * d.v_dim),
            ("self_attention.linear_q_down_proj.weight", d.q_rank * h),
            (
                "self_attention.linear_q_up_proj.layer_norm_weight",
                d.q_rank,
            ),
            (
                "self_attention.linear_q_up_proj.weight",
                d.heads * qk * d.q_rank,
            ),
            (
                "self_attention.linear_kv_down_proj.weight",
                (d.kv_rank + d.rope_dim) * h,
            ),
            (
                "self_attention.linear_kv_up_proj.layer_norm_weight",
                d.kv_rank,
            ),
            (
                "self_attention.linear_kv_up_proj.weight",
                d.heads * (d.qk_dim + d.v_dim) * d.kv_rank,
            ),
        ]);
    } else {
        list = vec![
            ("self_attention.linear_proj.weight", h * d.heads * d.v_dim),
            ("self_attention.linear_qkv.layer_norm_weight", h),
            (
                "self_attention.linear_qkv.weight",
                (d.heads + 2 * d.kv_heads) * d.qk_dim * h,
            ),
        ];
    }
    match kind {
        LayerKind::Dense => list.extend([
            ("mlp.linear_fc1.layer_norm_weight", h),
            ("mlp.linear_fc1.weight", 2 * d.ffn * h),
            ("mlp.linear_fc2.weight", d.ffn * h),
        ]),
        LayerKind::Moe => {
            list.extend([
                ("pre_mlp_layernorm.weight", h),
                ("mlp.router.weight", d.experts * h),
            ]);
            if d.shared_ffn > 0 {
                list.extend([
                    ("mlp.shared_experts.linear_fc1.weight", 2 * d.shared_ffn * h),
                    ("mlp.shared_experts.linear_fc2.weight", d.shared_ffn * h),
                ]);
            }
        }
    }
    list.into_iter()
        .map(|(name, numel)| (format!("{prefix}{name}"), numel))
        .collect()
}

fn expert_parameters(d: &Dims, prefix: &str) -> Vec<(String, u64)> {
    let projections = [
        ("linear_fc1", 2 * d.moe_ffn * d.hidden),
        ("linear_fc2", d.moe_ffn * d.hidden),
    ];
    projections
        .into_iter()
        .flat_map(|(name, numel)| {
            (0..d.local_experts)
                .map(move |expert| (format!("{prefix}mlp.experts.{name}.weight{expert}"), numel))
        })
        .collect()
}
