//! No knob is silent: changing a key changes the simulated step, or `Spec::notes` says that it does
//! not, or the schedule's real counterpart does not read it either.

use fsdpsim::schedule::build;
use fsdpsim::spec::{Fsdp, SECTIONS, Spec, fields};

use Fsdp::{Ddp, V1, V2};

/// A key, another value for it (and what must change with it), and which schedules read it.
struct Knob(&'static str, &'static [&'static str], &'static [Fsdp]);

const ALL: &[Fsdp] = &[Ddp, V1, V2];

const KNOBS: &[Knob] = &[
    Knob("model.num_layers", &["5"], ALL),
    Knob("model.hidden_size", &["2048"], ALL),
    Knob("model.ffn_hidden_size", &["4096"], ALL),
    Knob("model.num_attention_heads", &["16"], ALL),
    Knob("model.multi_latent_attention", &["true"], ALL),
    Knob("model.num_query_groups", &["4"], ALL),
    Knob("model.kv_channels", &["256"], ALL),
    Knob("model.q_lora_rank", &["256"], ALL),
    Knob("model.kv_lora_rank", &["256"], ALL),
    Knob("model.qk_head_dim", &["64"], ALL),
    Knob("model.qk_pos_emb_head_dim", &["32"], ALL),
    Knob("model.v_head_dim", &["64"], ALL),
    Knob("model.qk_layernorm", &["false"], ALL),
    Knob("model.num_moe_experts", &["64"], ALL),
    Knob("model.moe_ffn_hidden_size", &["1024"], ALL),
    Knob("model.moe_shared_expert_intermediate_size", &["1024"], ALL),
    Knob("model.moe_router_topk", &["4"], ALL),
    Knob("model.first_k_dense_replace", &["2"], ALL),
    Knob("model.moe_layer_freq", &["[1, 1, 0, 1]"], ALL),
    Knob("model.moe_router_score_function", &["softmax"], ALL),
    Knob("model.moe_router_enable_expert_bias", &["false"], ALL),
    Knob("model.moe_router_load_balancing_type", &["none"], ALL),
    Knob("model.moe_aux_loss_coeff", &["0.0"], ALL),
    Knob("model.moe_router_dtype", &["fp64"], ALL),
    Knob("model.moe_router_pre_softmax", &["false"], ALL),
    Knob(
        "model.moe_router_num_groups",
        &["4", "model.moe_router_group_topk=2"],
        ALL,
    ),
    Knob("model.moe_router_topk_scaling_factor", &["2.5"], ALL),
    Knob("model.moe_token_dispatcher_type", &["flex"], ALL),
    Knob("model.moe_expert_capacity_factor", &["2.0"], ALL),
    Knob("model.moe_permute_fusion", &["false"], ALL),
    Knob("model.vocab_size", &["64000"], ALL),
    Knob("model.untie_embeddings_and_output_weights", &["false"], ALL),
    Knob("model.normalization", &["LayerNorm"], ALL),
    Knob("model.swiglu", &["false"], ALL),
    Knob("model.apply_rope_fusion", &["true"], ALL),
    Knob("parallel.world_size", &["16"], ALL),
    Knob("parallel.expert_model_parallel_size", &["4"], ALL),
    Knob("train.seq_length", &["1024"], ALL),
    Knob("train.micro_batch_size", &["2"], ALL),
    Knob("train.num_microbatches", &["3"], ALL),
    Knob("ddp.use_distributed_optimizer", &["false"], &[Ddp]),
    Knob(
        "ddp.num_distributed_optimizer_instances",
        &[
            "4",
            "ddp.outer_dp_sharding_strategy=optim",
            "ddp.v2_build=sep",
        ],
        ALL,
    ),
    Knob("ddp.overlap_grad_reduce", &["true"], &[Ddp]),
    Knob("ddp.overlap_param_gather", &["true"], &[Ddp]),
    Knob("ddp.grad_reduce_in_fp32", &["true"], &[Ddp]),
    Knob("ddp.average_in_collective", &["true"], &[Ddp, V1]),
    Knob("ddp.gradient_reduce_div_fusion", &["false"], &[V1]),
    Knob("ddp.bucket_size", &["1000000"], &[V1]),
    Knob("ddp.suggested_communication_unit_size", &["1000000"], &[V1]),
    Knob("ddp.fsdp_double_buffer", &["true"], &[V1]),
    Knob("ddp.fsdp_all_gather_in_start_param_sync", &["false"], &[V1]),
    Knob("ddp.create_all_gather_group", &["true"], &[V1]),
    Knob("ddp.nccl_ub", &["true"], ALL),
    Knob("ddp.gradient_accumulation_fusion", &["true"], &[Ddp, V1]),
    Knob("ddp.megatron_fsdp_main_params_dtype", &["bf16"], &[V1, V2]),
    Knob("ddp.megatron_fsdp_main_grads_dtype", &["fp32"], &[V1, V2]),
    Knob("ddp.megatron_fsdp_grad_comm_dtype", &["bf16"], &[V1]),
    Knob("ddp.v2_build", &["sep"], &[V2]),
    Knob("ddp.v2_unify_communication_stream", &["true"], &[V2]),
    Knob(
        "ddp.v2_forward_prefetch_elements",
        &["0", "ddp.v2_build=sep"],
        &[V2],
    ),
    Knob(
        "ddp.v2_backward_prefetch_elements",
        &["0", "ddp.v2_build=sep"],
        &[V2],
    ),
    Knob("optimizer.clip_grad", &["0.0"], ALL),
    Knob(
        "optimizer.use_precision_aware_optimizer",
        &["false"],
        &[V1, V2],
    ),
    Knob("optimizer.main_grads_dtype", &["bf16"], ALL),
    Knob("optimizer.main_params_dtype", &["bf16"], ALL),
    Knob("optimizer.exp_avg_dtype", &["bf16"], ALL),
    Knob("optimizer.exp_avg_sq_dtype", &["bf16"], ALL),
    Knob("run.cuda_graph", &["optimizer"], ALL),
];

/// Keys that are not in the step: one value is allowed, another key decides, or the engine or the
/// cost model reads them.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "model.moe_router_group_topk",
        "goes with moe_router_num_groups",
    ),
    (
        "model.moe_flex_dispatcher_backend",
        "a label of the flex dispatcher",
    ),
    (
        "model.moe_pad_expert_input_to_capacity",
        "goes with moe_expert_capacity_factor",
    ),
    ("model.moe_grouped_gemm", "true is the only value"),
    ("model.params_dtype", "bf16 is the only value"),
    ("parallel.tensor_model_parallel_size", "1 is the only value"),
    (
        "parallel.pipeline_model_parallel_size",
        "1 is the only value",
    ),
    ("parallel.context_parallel_size", "1 is the only value"),
    ("parallel.gpus_per_node", "read by the cost of collectives"),
    (
        "train.global_batch_size",
        "another way to give num_microbatches",
    ),
    ("ddp.use_megatron_fsdp", "what --fsdp selects"),
    ("ddp.megatron_fsdp_version", "what --fsdp selects"),
    (
        "ddp.data_parallel_sharding_strategy",
        "optim_grads_params is the only value",
    ),
    (
        "ddp.outer_dp_sharding_strategy",
        "goes with num_distributed_optimizer_instances",
    ),
    (
        "ddp.v2_outer_rs_every_microbatch",
        "tested on the hybrid mesh below",
    ),
    ("optimizer.optimizer", "adam is the only value"),
    ("run.iterations", "read by the engine"),
    ("run.warmup_iterations", "read by the engine"),
    ("run.seed", "read by the engine"),
    ("run.launch_queue_depth", "read by the engine"),
    ("run.cuda_device_max_connections", "noted"),
];

/// The proxy, without what only MLA reads where the knob is of other attention, and without the
/// count of dense layers where the knob is the other way to say it.
fn base(key: &str) -> String {
    let text = fsdpsim::spec::ShippedSpec::find("dsv3-proxy")
        .expect("shipped")
        .toml;
    let drop: &[&str] = match key {
        "model.multi_latent_attention" | "model.num_query_groups" | "model.kv_channels" => &[
            "multi_latent_attention",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_head_dim",
            "qk_pos_emb_head_dim",
            "v_head_dim",
        ],
        "model.moe_layer_freq" => &["first_k_dense_replace"],
        _ => &[],
    };
    let kept = |line: &&str| !drop.iter().any(|key| line.starts_with(key));
    text.lines()
        .filter(kept)
        .map(|line| format!("{line}\n"))
        .collect()
}

#[test]
fn every_key_is_accounted_for() {
    let mut known: Vec<String> = KNOBS.iter().map(|knob| knob.0.to_owned()).collect();
    known.extend(ELSEWHERE.iter().map(|(key, _)| (*key).to_owned()));
    known.sort();
    let mut keys: Vec<String> = SECTIONS
        .iter()
        .flat_map(|section| {
            fields(section)
                .into_iter()
                .map(move |f| format!("{section}.{f}"))
        })
        .collect();
    keys.sort();
    assert_eq!(known, keys);
}

#[test]
fn a_knob_changes_the_step_or_a_note_says_that_it_does_not() {
    let mut faults = Vec::new();
    for Knob(key, values, readers) in KNOBS {
        let text = base(key);
        let mut sets = vec![format!("{key}={}", values[0])];
        sets.extend(values[1..].iter().map(|&set| set.to_owned()));
        if *key == "model.multi_latent_attention" {
            sets.push("model.kv_lora_rank=512".to_owned());
        }
        for &fsdp in ALL {
            let reads = readers.contains(&fsdp);
            let companions: Vec<String> = match *key {
                "model.multi_latent_attention" => Vec::new(),
                _ => sets[1..].to_vec(),
            };
            let before = Spec::parse("proxy", &text, &companions, Some(fsdp))
                .or_else(|_| Spec::parse("proxy", &text, &[""; 0], Some(fsdp)))
                .expect("valid");
            let after = match Spec::parse("proxy", &text, &sets, Some(fsdp)) {
                Ok(after) => after,
                Err(_) if !reads => continue, // refused is not silent
                Err(error) => panic!("{fsdp} {key}: {error}"),
            };
            let changed =
                build(&before, fsdp).expect("built") != build(&after, fsdp).expect("built");
            let noted = after.notes().iter().any(|note| note.key == *key);
            let fault = match (reads, changed, noted) {
                (true, false, false) => "changes nothing, and no note says so",
                (true, true, true) if !partly(key) => "changes the step, but a note denies it",
                (false, true, _) => "changes a step that does not read it",
                _ => continue,
            };
            faults.push(format!("{fsdp}: {key}={} {fault}", values[0]));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Keys whose note is about a part of what they do.
fn partly(key: &str) -> bool {
    matches!(
        key,
        "ddp.num_distributed_optimizer_instances" | "ddp.overlap_grad_reduce"
    )
}

#[test]
fn outer_reductions_of_every_microbatch_show_on_the_hybrid_mesh() {
    let set = ["ddp.v2_outer_rs_every_microbatch=true"];
    let before = Spec::load("dsv3-proxy-hybrid", &[""; 0], Some(V2)).expect("valid");
    let after = Spec::load("dsv3-proxy-hybrid", &set, Some(V2)).expect("valid");
    assert_ne!(
        build(&before, V2).expect("built"),
        build(&after, V2).expect("built")
    );
}
