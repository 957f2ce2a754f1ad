//! What a user may write, and what is said to one who writes something else.

use super::*;

const NO_SETS: [&str; 0] = [];

fn proxy(sets: &[&str]) -> Result<Spec, SpecError> {
    Spec::load("dsv3-proxy", sets, None)
}

fn refusal(sets: &[&str], fsdp: Option<Fsdp>) -> String {
    let error = Spec::load("dsv3-proxy", sets, fsdp).expect_err("must be refused");
    format!("{error}\nhelp: {}", error.help())
}

#[test]
fn every_shipped_spec_is_valid_under_every_schedule() {
    for shipped in SHIPPED {
        for fsdp in [Fsdp::V1, Fsdp::V2, Fsdp::Ddp] {
            let spec = Spec::load(shipped.name, &NO_SETS, Some(fsdp));
            let spec = spec.unwrap_or_else(|error| panic!("{}: {error}", shipped.name));
            assert_eq!(spec.fsdp(), fsdp);
        }
    }
}

#[test]
fn the_effective_configuration_reads_back_as_itself() {
    for shipped in SHIPPED {
        let spec = Spec::load(shipped.name, &NO_SETS, None).expect("valid");
        let again = Spec::parse("again", &spec.to_toml(), &NO_SETS, None).expect("valid");
        assert_eq!(again, spec, "{}", shipped.name);
    }
}

#[test]
fn the_proxy_is_what_was_measured() {
    let spec = proxy(&[]).expect("valid");
    assert_eq!(spec.num_microbatches(), 2);
    assert_eq!(spec.global_batch_size(), 16);
    assert_eq!((spec.inner_size(), spec.outer_size()), (8, 1));
    assert_eq!(spec.expert_data_parallel_size(), 4);
    assert_eq!(spec.local_experts(), 16);
    let moe: Vec<bool> = (0..4).map(|layer| spec.model.is_moe_layer(layer)).collect();
    assert_eq!(moe, [false, true, true, true]);
}

#[test]
fn the_public_report_runs_on_an_inner_group_of_two() {
    let spec = Spec::load("models/dsv3-proxy-hybrid.toml", &NO_SETS, None).expect("valid");
    assert_eq!((spec.inner_size(), spec.outer_size()), (2, 4));
    assert_eq!(spec.main_grads_dtype(), Dtype::Fp32);
}

#[test]
fn the_ways_to_say_which_layers_hold_experts_agree() {
    let by_count = proxy(&[]).expect("valid").model;
    let text = proxy(&[]).expect("valid").to_toml();
    let text = text.replace(
        "first_k_dense_replace = 1\n",
        "moe_layer_freq = [0, 1, 1, 1]\n",
    );
    let by_flags = Spec::parse("flags", &text, &NO_SETS, None)
        .expect("valid")
        .model;
    for layer in 0..4 {
        assert_eq!(by_count.is_moe_layer(layer), by_flags.is_moe_layer(layer));
    }
    let sum = "moe_layer_freq = \"([0]*1+[1]*3)\"";
    let by_sum = text.replace("moe_layer_freq = [0, 1, 1, 1]", sum);
    let by_sum = Spec::parse("sum", &by_sum, &NO_SETS, None).expect("valid");
    assert_eq!(by_sum.model, by_flags);
    let text = text.replace("moe_layer_freq = [0, 1, 1, 1]", "moe_layer_freq = 2");
    let every_second = Spec::parse("every", &text, &NO_SETS, None)
        .expect("valid")
        .model;
    assert_eq!(every_second.moe_layers(), 2);
    assert!(every_second.is_moe_layer(0) && !every_second.is_moe_layer(1));
}

#[test]
fn sets_override_in_order_and_values_are_toml_or_else_strings() {
    let spec = proxy(&[
        "train.seq_length=1024",
        "train.seq_length = 2048",
        "model.moe_token_dispatcher_type=flex",
        "optimizer.exp_avg_dtype=\"bf16\"",
        "ddp.overlap_grad_reduce=true",
    ])
    .expect("valid");
    assert_eq!(spec.train.seq_length, 2048);
    assert_eq!(spec.model.moe_token_dispatcher_type, TokenDispatcher::Flex);
    assert_eq!(spec.optimizer.exp_avg_dtype, Dtype::Bf16);
    assert!(spec.ddp.overlap_grad_reduce);
}

#[test]
fn an_empty_value_takes_the_field_out() {
    let spec = proxy(&["model.first_k_dense_replace=", "model.moe_layer_freq=2"]).expect("valid");
    assert_eq!(spec.model.moe_layers(), 2);
    assert!(refusal(&["model.hidden_size="], None).contains("missing field `hidden_size`"));
    assert!(refusal(&["model.hiden_size="], None).contains("did you mean `model.hidden_size`?"));
}

#[test]
fn a_misspelt_key_is_shown_with_its_place_and_its_neighbour() {
    let text = proxy(&[])
        .expect("valid")
        .to_toml()
        .replace("hidden_size = 1024", "hiden_size = 1024");
    let error = Spec::parse("my.toml", &text, &NO_SETS, None).expect_err("misspelt");
    let line = text
        .lines()
        .position(|line| line.starts_with("hiden_size"))
        .expect("there")
        + 1;
    let message = error.to_string();
    assert!(
        message.starts_with(&format!("my.toml:{line}:1: unknown field `hiden_size`")),
        "{message}"
    );
    assert!(
        message.contains("`num_layers`"),
        "names what is expected: {message}"
    );
    assert!(
        message.contains("hiden_size = 1024") && message.contains("^^^^^^^^^^"),
        "{message}"
    );
    assert_eq!(error.help(), "did you mean `hidden_size`?");
}

#[test]
fn a_key_of_another_section_is_sent_there() {
    let text = format!(
        "{}\nbucket_size = 1000\n",
        proxy(&[]).expect("valid").to_toml()
    );
    let error = Spec::parse("my.toml", &text, &NO_SETS, None).expect_err("wrong section");
    assert_eq!(error.help(), "`bucket_size` belongs in [ddp]");
    assert!(refusal(&["run.bucket_size=1"], None).contains("`bucket_size` belongs in [ddp]"));
}

#[test]
fn a_value_with_a_unit_or_of_the_wrong_type_is_explained() {
    let text = proxy(&[]).expect("valid").to_toml();
    for (from, to, expected) in [
        (
            "seq_length = 512",
            "seq_length = \"512 tokens\"",
            "write a plain integer without quotes or unit, e.g. `seq_length = 512`",
        ),
        (
            "qk_layernorm = true",
            "qk_layernorm = \"yes\"",
            "write true or false",
        ),
        (
            "clip_grad = 1.0",
            "clip_grad = \"one\"",
            "expected a number",
        ),
        (
            "hidden_size = 1024",
            "hidden_size = -1",
            "expected an integer of at least 0",
        ),
        (
            "hidden_size = 1024",
            "hidden_size = 1024.5",
            "expected an integer of at least 0",
        ),
        ("\"RMSNorm\"", "\"rmsnorm\"", "did you mean `RMSNorm`?"),
        (
            "megatron_fsdp_version = 1",
            "megatron_fsdp_version = 3",
            "versions 1 and 2, not 3",
        ),
        ("[train]", "[train", "my.toml:"),
        (
            "first_k_dense_replace = 1",
            "moe_layer_freq = \"x\"",
            "a list of 0 and 1",
        ),
    ] {
        let broken = text.replacen(from, to, 1);
        assert_ne!(broken, text, "{from}");
        let error = Spec::parse("my.toml", &broken, &NO_SETS, None).expect_err(to);
        let all = format!("{error}\n{}", error.help());
        assert!(all.starts_with("my.toml:"), "{to}: no place in {all}");
        assert!(all.contains(expected), "{to}: {all}");
    }
}

#[test]
fn a_wrong_set_is_named_even_among_right_ones() {
    let sets = |bad: &'static str| ["train.seq_length=1024", bad, "run.seed=3"];
    for (bad, expected) in [
        ("ddp.bucketsize=1", "did you mean `ddp.bucket_size`?"),
        ("bucket_size=1", "did you mean `--set ddp.bucket_size=1`?"),
        ("dp.bucket_size=1", "did you mean `ddp`?"),
        ("ddp.bucket_size", "there is no `=`"),
        ("train.seq_length=512 tokens", "e.g. `seq_length = 512`"),
        ("ddp.v2_build=oct", "expected `aug` or `sep`"),
        ("nonsense=1", "the sections are model, parallel"),
        ("run.colour=1", "[run] has: iterations"),
        ("ddp.x.y=1", "unknown field `x.y`"),
    ] {
        let message = refusal(&sets(bad), None);
        assert!(
            message.starts_with(&format!("--set {bad}: ")),
            "{bad}: {message}"
        );
        assert!(message.contains(expected), "{bad}: {message}");
    }
}

#[test]
fn impossible_combinations_are_refused_with_the_reason() {
    let (v1, v2) = (Some(Fsdp::V1), Some(Fsdp::V2));
    for (sets, fsdp, expected) in [
        (
            &["model.num_moe_experts=33"][..],
            v1,
            "33 experts cannot be spread evenly over 2 ranks",
        ),
        (
            &["parallel.world_size=7"],
            v1,
            "a world of 7 ranks is not divisible by it (2)",
        ),
        (
            &[
                "model.hidden_size=1048573",
                "model.ffn_hidden_size=1048571",
                "model.q_lora_rank=1048561",
            ],
            v1,
            "no small common multiple to align a flat buffer to",
        ),
        (
            &[
                "model.hidden_size=16777216",
                "model.ffn_hidden_size=16777216",
            ],
            v1,
            "a rank would hold",
        ),
        (
            &["train.num_microbatches=100000"],
            v1,
            "more than a step can hold",
        ),
        (
            &["parallel.world_size=12"],
            v1,
            "12 ranks do not fill nodes of 8 GPUs",
        ),
        (
            &["ddp.num_distributed_optimizer_instances=3"],
            v1,
            "size of 8 is not divisible by it (3)",
        ),
        (
            &["ddp.num_distributed_optimizer_instances=8"],
            v1,
            "expert data-parallel size of 4",
        ),
        (
            &["ddp.num_distributed_optimizer_instances=4"],
            v1,
            "replicates over the outer group",
        ),
        (
            &["ddp.outer_dp_sharding_strategy=optim"],
            v1,
            "no outer group on the plain mesh",
        ),
        (
            &["train.global_batch_size=32"],
            v1,
            "32 sequences are 4 microbatches",
        ),
        (
            &["train.global_batch_size=17"],
            v1,
            "cannot be split into microbatches of 1 on 8 ranks",
        ),
        (
            &["run.cuda_graph=full_iteration"],
            v2,
            "device-to-host synchronisation",
        ),
        (
            &["model.moe_router_topk=64"],
            v1,
            "a token cannot go to 64 of 32 experts",
        ),
        (
            &["model.num_query_groups=4"],
            v1,
            "multi-head latent attention does not read it",
        ),
        (
            &["model.multi_latent_attention=false"],
            v1,
            "only multi-head latent attention reads it",
        ),
        (
            &["parallel.tensor_model_parallel_size=2"],
            v1,
            "tensor parallelism is not modelled",
        ),
        (
            &["parallel.pipeline_model_parallel_size=2"],
            v1,
            "pipeline parallelism is not modelled",
        ),
        (
            &["ddp.suggested_communication_unit_size=1000000"],
            v2,
            "version 2 does not support it",
        ),
        (
            &["ddp.fsdp_double_buffer=true"],
            v2,
            "version 2 does not support it",
        ),
        (
            &["ddp.gradient_accumulation_fusion=true"],
            v2,
            "version 2 does not support it",
        ),
        (
            &["ddp.v2_forward_prefetch_elements=0"],
            v2,
            "does not have a prefetch budget",
        ),
        (
            &["ddp.data_parallel_sharding_strategy=optim"],
            v1,
            "optim_grads_params, not optim",
        ),
        (
            &["model.moe_token_dispatcher_type=allgather"],
            v1,
            "allgather dispatcher is not modelled",
        ),
        (&["model.hidden_size=0"], v1, "0 is outside 1 to"),
        (
            &["train.seq_length=99999999999"],
            v1,
            "99999999999 is outside 1 to",
        ),
        (
            &[
                "train.seq_length=16000000",
                "model.vocab_size=16000000",
                "train.micro_batch_size=9999999",
            ],
            v1,
            "more elements than any device holds",
        ),
        (
            &["model.moe_expert_capacity_factor=-1.0"],
            v1,
            "no multiple of the mean load",
        ),
        (&["model.moe_aux_loss_coeff=nan"], v1, "no weight of a loss"),
        (
            &[
                "optimizer.exp_avg_dtype=bf16",
                "optimizer.use_precision_aware_optimizer=false",
            ],
            v1,
            "moments are fp32",
        ),
        (&["run.iterations=0"], v1, "0 is outside 1 to"),
    ] {
        let message = refusal(sets, fsdp);
        assert!(message.contains(expected), "{sets:?}: {message}");
        assert!(message.contains("help: "), "{sets:?}");
    }
}

#[test]
fn a_violation_names_the_set_behind_it() {
    for set in [
        "ddp.num_distributed_optimizer_instances=3",
        "model.num_moe_experts=33", // the violated key is another one
        "parallel.world_size=7",
    ] {
        let message = refusal(&[set], None);
        assert!(
            message.contains(&format!("(from --set {set})")),
            "{message}"
        );
    }
}

#[test]
fn several_faults_are_reported_together() {
    let message = refusal(&["model.num_moe_experts=33", "parallel.world_size=7"], None);
    assert!(message.contains("settings cannot be combined"), "{message}");
    assert!(
        message.contains("33 experts") && message.contains("7 ranks"),
        "{message}"
    );
}

#[test]
fn what_one_version_refuses_another_may_have() {
    let spec = |set: &str, fsdp| Spec::load("dsv3-proxy", &[set], Some(fsdp));
    assert!(spec("ddp.suggested_communication_unit_size=1000000", Fsdp::V1).is_ok());
    assert!(
        spec("ddp.bucket_size=1000000", Fsdp::V2).is_ok(),
        "version 2 ignores it"
    );
    assert!(
        Spec::load(
            "dsv3-proxy",
            &["ddp.v2_forward_prefetch_elements=0", "ddp.v2_build=sep"],
            Some(Fsdp::V2)
        )
        .is_ok()
    );
    let graph = [
        "run.cuda_graph=full_iteration",
        "model.moe_token_dispatcher_type=flex",
        "model.moe_expert_capacity_factor=4.0",
    ];
    assert!(Spec::load("dsv3-proxy", &graph, Some(Fsdp::V2)).is_ok());
}

#[test]
fn an_unknown_name_lists_the_shipped_ones() {
    let error = Spec::load("dsv3-proxi", &NO_SETS, None).expect_err("unknown");
    assert!(error.to_string().contains("no file `dsv3-proxi`"));
    assert!(
        error.help().starts_with("did you mean `dsv3-proxy`?"),
        "{}",
        error.help()
    );
    assert!(error.help().contains("llama3-8b"));
}

#[test]
fn a_file_that_is_not_text_is_unreadable() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("x.toml");
    std::fs::write(&path, [0xff, 0xfe, 0x00]).expect("written");
    let error = Spec::load(&path.display().to_string(), &NO_SETS, None).expect_err("binary");
    assert!(error.is_unreadable(), "{error}");
    let error = Spec::load(&dir.path().display().to_string(), &NO_SETS, None).expect_err("folder");
    assert!(error.is_unreadable(), "{error}");
}
