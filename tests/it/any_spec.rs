//! Whatever a user asks for is either refused with a remedy or simulated: nothing panics, and what
//! follows from a spec is consistent.

use fsdpsim::model::{Mesh, Parameter, parameter_groups, parameters};
use fsdpsim::schedule::build;
use fsdpsim::spec::{Fsdp, Spec};
use proptest::prelude::*;
use proptest::sample::select;

/// Sizes from absurd to usual.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        1u64..40,
        select(vec![64, 96, 128, 512, 1000, 1024, 2816, 7168, 65536]),
        select(vec![1 << 20, (1 << 24) - 3, (1 << 24) + 1, u64::MAX / 2]),
    ]
}

/// A key and a value for it, possible or not.
fn set() -> impl Strategy<Value = String> {
    let sizes = vec![
        "model.hidden_size",
        "model.ffn_hidden_size",
        "model.num_attention_heads",
        "model.q_lora_rank",
        "model.kv_lora_rank",
        "model.qk_head_dim",
        "model.qk_pos_emb_head_dim",
        "model.v_head_dim",
        "model.moe_ffn_hidden_size",
        "model.moe_shared_expert_intermediate_size",
        "model.vocab_size",
        "train.seq_length",
        "train.micro_batch_size",
        "ddp.bucket_size",
        "ddp.suggested_communication_unit_size",
    ];
    let counts = vec![
        "model.num_layers",
        "model.moe_router_topk",
        "model.first_k_dense_replace",
        "train.num_microbatches",
        "parallel.expert_model_parallel_size",
        "parallel.gpus_per_node",
        "ddp.num_distributed_optimizer_instances",
    ];
    let wide = vec!["model.num_moe_experts", "parallel.world_size"];
    let named = vec![
        "ddp.outer_dp_sharding_strategy=optim",
        "ddp.v2_build=sep",
        "ddp.megatron_fsdp_main_grads_dtype=fp32",
        "ddp.v2_unify_communication_stream=true",
        "model.qk_layernorm=false",
        "model.q_lora_rank=",
        "model.moe_shared_expert_intermediate_size=",
        "model.untie_embeddings_and_output_weights=false",
        "model.normalization=LayerNorm",
        "model.moe_token_dispatcher_type=flex",
        "model.num_moe_experts=",
    ];
    prop_oneof![
        (select(sizes), size()).prop_map(|(key, value)| format!("{key}={value}")),
        (select(counts), 0u64..5).prop_map(|(key, value)| format!("{key}={value}")),
        (select(wide), 0u64..9).prop_map(|(key, value)| format!("{key}={}", 4 * value)),
        select(named).prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_spec_is_refused_with_a_remedy_or_simulated(
        sets in proptest::collection::vec(set(), 0..5),
        model in select(vec!["dsv3-proxy", "dsv3-proxy-hybrid", "llama3-8b"]),
        fsdp in select(vec![Fsdp::Ddp, Fsdp::V1, Fsdp::V2]),
    ) {
        let spec = match Spec::load(model, &sets, Some(fsdp)) {
            Ok(spec) => spec,
            Err(error) => {
                prop_assert!(!error.help().is_empty(), "{error}");
                return Ok(());
            }
        };
        let parameters = parameters(&spec);
        let groups = parameter_groups(&spec, &parameters);
        let mut members: Vec<usize> = groups.iter().flat_map(|g| g.members.clone()).collect();
        members.sort_unstable();
        prop_assert_eq!(members, (0..parameters.len()).collect::<Vec<_>>());
        let total: u64 = groups.iter().map(|group| group.numel()).sum();
        prop_assert_eq!(total, parameters.iter().map(Parameter::numel).sum::<u64>());
        let mesh = Mesh::new(&spec);
        prop_assert_eq!(mesh.inner * mesh.outer, mesh.world);
        prop_assert_eq!(mesh.expert_inner * mesh.expert_outer * mesh.expert_parallel, mesh.world);
        if spec.model.num_layers * spec.num_microbatches() <= 64 {
            let program = build(&spec, fsdp).expect("a valid spec builds");
            prop_assert_eq!(program.world_size() as u64, mesh.world);
        }
    }
}
