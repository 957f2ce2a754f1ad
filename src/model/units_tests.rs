//! Units, buckets, groups and shards of the proxy and of what it can be changed into.

use super::*;
use crate::model::parameters::parameters;

fn groups(name: &str, fsdp: Fsdp, sets: &[&str]) -> (Spec, Vec<Parameter>, Vec<ParameterGroup>) {
    let spec = Spec::load(name, sets, Some(fsdp)).expect("valid");
    let parameters = parameters(&spec);
    let groups = parameter_groups(&spec, &parameters);
    (spec, parameters, groups)
}

fn names(groups: &[ParameterGroup]) -> Vec<&str> {
    groups.iter().map(|group| group.name.as_str()).collect()
}

const EIGHT: [&str; 8] = [
    "root",
    "layers.0",
    "layers.1",
    "layers.1.experts",
    "layers.2",
    "layers.2.experts",
    "layers.3",
    "layers.3.experts",
];

#[test]
fn the_proxy_has_eight_buckets_and_eight_groups() {
    for fsdp in [Fsdp::V1, Fsdp::V2] {
        let (_, _, groups) = groups("dsv3-proxy", fsdp, &[]);
        assert_eq!(names(&groups), EIGHT);
        let sizes: Vec<usize> = groups.iter().map(|group| group.members.len()).collect();
        assert_eq!(
            sizes,
            [3, 11, 12, 32, 12, 32, 12, 32],
            "bursts of issue 7264"
        );
    }
}

#[test]
fn version_2_goes_backward_through_parents_before_children() {
    let (_, _, groups) = groups("dsv3-proxy", Fsdp::V2, &[]);
    let order = v2_backward_order(&groups);
    let order: Vec<&str> = order
        .iter()
        .map(|&index| groups[index].name.as_str())
        .collect();
    let expected = [
        "root",
        "layers.3",
        "layers.3.experts",
        "layers.2",
        "layers.2.experts",
        "layers.1",
        "layers.1.experts",
        "layers.0",
    ];
    assert_eq!(order, expected);
}

#[test]
fn only_the_root_of_version_1_is_split_by_the_bucket_size() {
    let (_, _, one) = groups("dsv3-proxy", Fsdp::V1, &[]);
    let (_, _, split) = groups("dsv3-proxy", Fsdp::V1, &["ddp.bucket_size=1000000"]);
    assert_eq!(
        split.len(),
        one.len() + 1,
        "embedding | norm and output layer"
    );
    assert_eq!(names(&split)[..3], ["root", "root.1", "layers.0"]);
    let (_, _, ignored) = groups("dsv3-proxy", Fsdp::V2, &["ddp.bucket_size=1000000"]);
    assert_eq!(names(&ignored), EIGHT);
}

#[test]
fn a_tied_embedding_has_a_bucket_of_its_own() {
    let tied = ["model.untie_embeddings_and_output_weights=false"];
    let (_, parameters, groups) = groups("llama3-8b", Fsdp::V1, &tied);
    assert_eq!(names(&groups)[..2], ["root", "root.1"]);
    assert_eq!(
        parameters[groups[0].members[0]].name,
        "embedding.word_embeddings.weight"
    );
}

#[test]
fn without_expert_parallelism_version_2_keeps_experts_in_their_layer() {
    let ep1 = ["parallel.expert_model_parallel_size=1"];
    let (_, _, v2) = groups("dsv3-proxy", Fsdp::V2, &ep1);
    assert_eq!(
        names(&v2),
        ["root", "layers.0", "layers.1", "layers.2", "layers.3"]
    );
    let (_, _, v1) = groups("dsv3-proxy", Fsdp::V1, &ep1);
    assert_eq!(names(&v1), EIGHT);
}

#[test]
fn ddp_has_one_bucket_a_buffer_unless_reduction_overlaps() {
    let (_, _, buckets) = groups("dsv3-proxy", Fsdp::Ddp, &[]);
    assert_eq!(names(&buckets), ["dense.0", "experts.0"]);
    let (_, parameters, buckets) =
        groups("dsv3-proxy", Fsdp::Ddp, &["ddp.overlap_grad_reduce=true"]);
    // 95.0 M dense and 75.5 M expert elements in buckets of at least 40 M, from the back.
    assert_eq!(
        names(&buckets),
        ["dense.0", "dense.1", "experts.0", "experts.1"]
    );
    assert_eq!(
        parameters[buckets[0].members[0]].name,
        "output_layer.weight"
    );
}

#[test]
fn buffers_have_the_measured_sizes() {
    // Sizes of the all-gathers in the annotated traces of both versions: gathered, shard.
    let measured = [
        ("root", 65_544_192, 8_193_024),
        ("layers.0", 12_705_792, 1_588_224),
        ("layers.1", 5_611_520, 701_440),
        ("layers.1.experts", 25_165_824, 6_291_456),
    ];
    for fsdp in [Fsdp::V1, Fsdp::V2] {
        let (spec, _, groups) = groups("dsv3-proxy", fsdp, &[]);
        let mesh = Mesh::new(&spec);
        for (group, (name, gathered, shard)) in groups.iter().zip(measured) {
            let (inner, _) = mesh.sizes(group.experts);
            assert_eq!(group.name, name);
            assert_eq!(group.layout.size, gathered, "{fsdp} {name}");
            assert_eq!(group.layout.size / inner, shard, "{fsdp} {name}");
        }
        // Row sizes of the dense layer: 2816 (fc2), 1024, 512.
        assert_eq!(groups[1].layout.chunk, 11264);
    }
}

#[test]
fn every_element_is_optimized_by_exactly_one_rank_of_those_that_share_it() {
    for name in ["dsv3-proxy", "dsv3-proxy-hybrid"] {
        for fsdp in [Fsdp::V1, Fsdp::V2] {
            let (spec, _, groups) = groups(name, fsdp, &[]);
            let mesh = Mesh::new(&spec);
            for group in &groups {
                let mut total = vec![0; group.members.len()];
                for rank in 0..mesh.world {
                    for (sum, part) in total.iter_mut().zip(group.optimizer_shard(&mesh, rank)) {
                        *sum += part;
                    }
                }
                let copies = if group.experts {
                    spec.parallel.expert_model_parallel_size
                } else {
                    1
                };
                let expected: Vec<u64> = group.layout.numels.iter().map(|n| n * copies).collect();
                assert_eq!(total, expected, "{name} {fsdp} {}", group.name);
            }
        }
    }
}

#[test]
fn the_first_rank_of_the_measured_run_owns_parts_of_23_parameters() {
    // The trace of version 1 has 23 copies of main weights into model weights in a step.
    let (spec, _, groups) = groups("dsv3-proxy", Fsdp::V1, &[]);
    let mesh = Mesh::new(&spec);
    let shards = groups.iter().map(|group| group.optimizer_shard(&mesh, 0));
    let owned: usize = shards
        .map(|shard| shard.iter().filter(|&&n| n > 0).count())
        .sum();
    assert_eq!(owned, 23);
}

#[test]
fn an_optimizer_shard_lies_within_the_parameter_shard() {
    let (spec, _, groups) = groups("dsv3-proxy-hybrid", Fsdp::V1, &[]);
    let mesh = Mesh::new(&spec);
    for group in &groups {
        for rank in 0..mesh.world {
            let optimizer = group.optimizer_shard(&mesh, rank);
            let kept = group.parameter_shard(&mesh, rank);
            assert!(
                optimizer
                    .iter()
                    .zip(&kept)
                    .all(|(part, whole)| part <= whole)
            );
        }
    }
}

#[test]
fn flat_shards_leave_most_parameters_empty_and_differ_between_ranks() {
    let (spec, _, groups) = groups("dsv3-proxy", Fsdp::V2, &[]);
    let mesh = Mesh::new(&spec);
    let local = |rank: u64| -> usize {
        let shards = groups
            .iter()
            .map(|group| group.optimizer_shard(&mesh, rank));
        shards
            .map(|shard| shard.iter().filter(|&&n| n > 0).count())
            .sum()
    };
    let counts: Vec<usize> = (0..8).map(local).collect();
    assert!(
        counts.iter().all(|&count| (20..=70).contains(&count)),
        "{counts:?}"
    );
    assert_ne!(
        counts.iter().min(),
        counts.iter().max(),
        "ranks differ: {counts:?}"
    );
}

#[test]
fn a_dense_model_has_a_root_and_its_layers() {
    for fsdp in [Fsdp::V1, Fsdp::V2] {
        let (_, _, groups) = groups("llama3-8b", fsdp, &[]);
        assert_eq!(
            groups.len(),
            if fsdp == Fsdp::V1 { 34 } else { 33 },
            "v1 splits the root"
        );
        assert!(groups.iter().all(|group| !group.experts));
    }
}
