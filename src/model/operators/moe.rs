//! Mixture-of-experts layer: norm, shared expert, router, dispatch, experts, combine.

use crate::model::Dims;
use crate::model::recipe::Recipe;
use crate::program::KernelClass;

/// Norm before the experts and the shared expert.
pub fn shared_expert_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.shared.forward");
    r.op("_OperationFuserAutogradFunction", 6)
        .norm(2.0 * d.bf16(d.hidden));
    if d.shared_ffn > 0 {
        r.op("_Linear", 2)
            .gemm(d.tokens, 2 * d.shared_ffn, d.hidden);
        r.op("aten::view", 0);
        r.op("SwiGLUFunction", 6)
            .elementwise(d.bf16(3 * d.shared_ffn));
        r.op("aten::view", 0);
        r.op("_Linear", 2).gemm(d.tokens, d.hidden, d.shared_ffn);
    }
    r
}

/// Router: fp32 logits, sigmoid scores, top-k with expert bias, auxiliary loss.
pub fn router_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.router.forward");
    let scores = 4.0 * (d.tokens * d.experts) as f64;
    let chosen = 4.0 * (d.tokens * d.topk) as f64;
    let mask = (d.tokens * d.experts) as f64;
    r.op("RouterGatingLinearFunction", 3)
        .gemm(d.tokens, d.experts, d.hidden);
    r.op("aten::view", 0).op("aten::to", 0);
    r.op("aten::sigmoid", 0).elementwise(2.0 * scores);
    r.op("aten::to", 0);
    r.op("aten::add", 0).elementwise(2.0 * scores);
    r.op("aten::topk", 13)
        .index(2.0 * scores)
        .index(2.0 * chosen);
    r.op("aten::gather", 2).index(2.0 * chosen);
    r.op("aten::sum", 0).reduce(chosen);
    r.op("aten::add", 0).tiny();
    r.op("aten::div", 0).elementwise(2.0 * chosen);
    r.op("aten::type_as", 1);
    r.op("aten::zeros_like", 4).fill(scores);
    r.op("aten::scatter", 3)
        .copy(2.0 * scores)
        .index(2.0 * chosen);
    r.op("aten::zeros_like", 4).fill(scores);
    r.op("aten::to", 3).cast(scores + mask);
    r.op("aten::scatter", 2)
        .copy(2.0 * mask)
        .index(2.0 * chosen);
    r.op("aten::to", 3).cast(scores + mask);
    r.op("aten::to", 0);
    r.op("aten::sigmoid", 0).elementwise(2.0 * scores);
    r.op("aten::sum", 0).reduce(scores);
    r.op("aten::add", 0).tiny();
    r.op("aten::div", 0).elementwise(2.0 * scores);
    r.op("aten::topk", 13)
        .index(2.0 * scores)
        .index(2.0 * chosen);
    r.op("aten::zeros_like", 4).fill(scores);
    r.op("aten::to", 3).cast(scores + mask);
    r.op("aten::scatter", 2)
        .copy(2.0 * mask)
        .index(2.0 * chosen);
    r.op("aten::to", 3).cast(scores + mask);
    r.ops("aten::reshape", 1, 2);
    r.op("aten::sum", 5).cast(9.0 * mask).reduce(8.0 * mask);
    r.op("_ReduceFromModelParallelRegion", 2);
    r.op("aten::sum", 1).reduce(scores);
    r.op("aten::mul", 0).tiny();
    r.op("aten::sum", 2).tiny();
    r.op("aten::mul", 0).tiny();
    r.op("aten::div", 0).tiny();
    r.op("aten::div", 0).tiny();
    r.op("aten::select", 1).op("aten::detach", 1);
    r.op("aten::add_", 0).tiny();
    r.op("aten::select", 1).op("aten::copy_", 0);
    r.op("MoEAuxLossAutoScaler", 2);
    r.op("TorchDynamo Cache Lookup", 0);
    r.op("Torch-Compiled Region", 5).reduce(mask).tiny();
    r.op("aten::view", 0);
    r
}

/// Token counts, their copies to the host, permutation and alltoall dispatch. Without `host_counts`
/// (flex dispatcher with fixed capacity) the host reads nothing and never waits.
pub fn dispatch_forward(d: &Dims, host_counts: bool) -> Recipe {
    let mut r = Recipe::new("moe.dispatch.forward");
    let mask = (d.tokens * d.experts) as f64;
    let moved = 2.0 * (d.dispatched() * d.hidden) as f64;
    let counts = 8 * d.experts;
    r.op("aten::sum", 5).cast(9.0 * mask).reduce(8.0 * mask);
    r.op("aten::to", 0).op("aten::reshape", 1);
    r.op("aten::sum", 1).tiny();
    r.gather_counts("_GatherFromSequenceParallelRegion", 12, counts * 2);
    r.op("aten::reshape", 1)
        .op("aten::transpose", 1)
        .op("aten::slice", 1);
    r.op("aten::contiguous", 4).tiny();
    r.op("aten::sum", 1).tiny();
    r.op("aten::select", 1);
    r.op("aten::sum", 1).tiny();
    r.op("aten::sum", 1).tiny();
    r.op("aten::view", 0);
    if host_counts {
        copy_counts_to_host(&mut r, d);
    }
    r.op("te_moe::permute_mask_map_fwd", 9)
        .index(mask)
        .index(mask)
        .index(2.0 * mask)
        .kernel("permute", KernelClass::Index, 0.0, d.bf16(d.hidden) + moved);
    if host_counts {
        r.wait_host_copies();
    }
    r.alltoall("_AllToAll", 9, moved as u64);
    r.alltoall("_AllToAll", 9, 4 * d.dispatched());
    r.op("aten::ravel", 1);
    r.op("te_moe::chunk_sort_fwd", 4)
        .index(4.0 * d.dispatched() as f64)
        .index(2.0 * moved);
    r
}

/// Four small copies of token counts to the host on the side stream.
fn copy_counts_to_host(r: &mut Recipe, d: &Dims) {
    r.fork_side_stream();
    for copy in 0..4 {
        r.copy_to_host("aten::to", 4, 8 * d.local_experts);
        if copy == 0 {
            r.op("aten::record_stream", 0);
            continue;
        }
        r.op("aten::detach", 1).op("aten::to", 0);
        r.op("aten::resolve_conj", 0).op("aten::resolve_neg", 0);
        r.op("aten::record_stream", 0);
    }
}

/// Grouped up projection, weighted SwiGLU, grouped down projection of the local experts.
pub fn experts_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.experts.forward");
    let m = d.tokens_per_expert();
    let rows = d.dispatched() as f64;
    let preamble = |r: &mut Recipe| {
        r.op("aten::empty", 0)
            .op("aten::to", 0)
            .op("aten::lift_fresh", 0)
            .op("aten::detach_", 1);
    };
    let nested = 52;
    r.op("aten::unsqueeze", 1)
        .op("aten::resolve_conj", 0)
        .op("aten::resolve_neg", 0);
    preamble(&mut r);
    r.op("_GroupedLinear", nested)
        .grouped_gemm(d.local_experts, m, 2 * d.moe_ffn, d.hidden);
    r.op("aten::view", 0);
    r.op("WeightedSwiGLUFunction", 6)
        .elementwise(2.0 * rows * (3 * d.moe_ffn) as f64);
    preamble(&mut r);
    r.op("_GroupedLinear", nested)
        .grouped_gemm(d.local_experts, m, d.hidden, d.moe_ffn);
    r
}

/// Sort back, alltoall, unpermute, add the shared expert.
pub fn combine_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.combine.forward");
    let moved = 2.0 * (d.dispatched() * d.hidden) as f64;
    r.op("aten::numpy_T", 2);
    r.op("aten::ravel", 6).tiny();
    r.op("te_moe::chunk_sort_fwd", 4)
        .index(4.0 * d.dispatched() as f64)
        .index(2.0 * moved);
    r.alltoall("_AllToAll", 9, moved as u64);
    r.op("te_moe::unpermute_mask_map_fwd", 2).kernel(
        "unpermute",
        KernelClass::Index,
        0.0,
        moved + d.bf16(d.hidden),
    );
    r.op("aten::view", 0);
    if d.shared_ffn > 0 {
        r.op("aten::add", 0).elementwise(3.0 * d.bf16(d.hidden));
    }
    r
}

/// Backward of [`combine_forward`].
pub fn combine_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.combine.backward");
    let moved = 2.0 * (d.dispatched() * d.hidden) as f64;
    if d.shared_ffn > 0 {
        r.op("AddBackward0", 1);
    }
    r.op("ViewBackward0", 3);
    r.op(
        "GeneratedBackwardFor_te_moe_unpermute_mask_map_fwd_defaultBackward",
        3,
    )
    .kernel("permute", KernelClass::Index, 0.0, moved + d.bf16(d.hidden));
    r.alltoall("_AllToAllBackward", 11, moved as u64);
    r.op(
        "GeneratedBackwardFor_te_moe_chunk_sort_fwd_defaultBackward",
        12,
    )
    .fill(4.0 * d.dispatched() as f64)
    .index(2.0 * moved);
    r
}

/// Backward of [`experts_forward`].
pub fn experts_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.experts.backward");
    let m = d.tokens_per_expert();
    let rows = d.dispatched() as f64;
    let nested = 112;
    let grouped = |r: &mut Recipe, n: u64, k: u64, name: &str| {
        r.op("_GroupedLinearBackward", nested)
            .grouped_gemm(d.local_experts, m, k, n)
            .grouped_gemm(d.local_experts, n, k, m);
        for expert in 0..d.local_experts {
            r.accumulate(&format!("mlp.experts.{name}.weight{expert}"));
        }
    };
    grouped(&mut r, d.hidden, d.moe_ffn, "linear_fc2");
    r.op("WeightedSwiGLUFunctionBackward", 8)
        .elementwise(2.0 * rows * (5 * d.moe_ffn) as f64)
        .reduce(2.0 * rows * (2 * d.moe_ffn) as f64);
    r.op("ViewBackward0", 3);
    grouped(&mut r, 2 * d.moe_ffn, d.hidden, "linear_fc1");
    r.op("UnsqueezeBackward0", 3);
    r
}

/// Backward of [`dispatch_forward`].
pub fn dispatch_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.dispatch.backward");
    let moved = 2.0 * (d.dispatched() * d.hidden) as f64;
    r.op(
        "GeneratedBackwardFor_te_moe_chunk_sort_fwd_defaultBackward",
        8,
    )
    .fill(4.0 * d.dispatched() as f64)
    .index(2.0 * moved);
    r.alltoall("_AllToAllBackward", 11, 4 * d.dispatched());
    r.alltoall("_AllToAllBackward", 11, moved as u64);
    r.op(
        "GeneratedBackwardFor_te_moe_permute_mask_map_fwd_defaultBackward",
        8,
    )
    .fill(4.0 * (d.tokens * d.experts) as f64)
    .kernel(
        "unpermute",
        KernelClass::Index,
        0.0,
        moved + d.bf16(d.hidden),
    );
    r.op("ViewBackward0", 3);
    r
}

/// Backward of [`router_forward`].
pub fn router_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.router.backward");
    let scores = 4.0 * (d.tokens * d.experts) as f64;
    let chosen = 4.0 * (d.tokens * d.topk) as f64;
    let hidden = d.bf16(d.hidden);
    r.op("MoEAuxLossAutoScalerBackward", 7).tiny().tiny();
    r.op("aten::sum", 2).tiny();
    r.op("DivBackward0", 2).tiny();
    r.op("MulBackward0", 2).tiny();
    r.op("SumBackward0", 3);
    r.op("MulBackward0", 2).tiny();
    r.op("SumBackward1", 5).op("ViewBackward0", 3);
    let division = |r: &mut Recipe, bytes: f64| {
        r.op("DivBackward0", 7);
        for _ in 0..5 {
            r.elementwise(2.0 * bytes);
        }
        r.op("aten::sum", 0).reduce(bytes);
        r.op("AddBackward0", 1);
        r.op("SumBackward1", 4);
        r.op("aten::add_", 0).elementwise(2.0 * bytes);
    };
    division(&mut r, scores);
    r.op("SigmoidBackward0", 2).elementwise(3.0 * scores);
    r.op("ScatterBackward0", 4).index(2.0 * chosen);
    division(&mut r, chosen);
    r.op("GatherBackward0", 10).fill(scores).index(2.0 * chosen);
    r.op("SigmoidBackward0", 2).elementwise(3.0 * scores);
    r.op("aten::add_", 0).elementwise(3.0 * scores);
    r.op("ViewBackward0", 3);
    let weight = 2.0 * (d.experts * d.hidden) as f64;
    r.op("RouterGatingLinearFunctionBackward", 26)
        .cast(3.0 * weight)
        .gemm(d.tokens, d.hidden, d.experts)
        .cast(3.0 * hidden)
        .gemm(d.experts, d.hidden, d.tokens)
        .tiny()
        .cast(3.0 * hidden)
        .cast(3.0 * weight);
    r.op("aten::add_", 0).elementwise(3.0 * hidden);
    r.accumulate("mlp.router.weight");
    r
}

/// Backward of [`shared_expert_forward`], up to the norm before the experts.
pub fn shared_expert_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("moe.shared.backward");
    let (t, h, f) = (d.tokens, d.hidden, d.shared_ffn);
    if f > 0 {
        r.op("_LinearBackward", 6).gemm(t, f, h).gemm(h, f, t);
        r.accumulate("mlp.shared_experts.linear_fc2.weight");
        r.op("ViewBackward0", 3);
        r.op("SwiGLUFunctionBackward", 7).elementwise(d.bf16(5 * f));
        r.op("ViewBackward0", 3);
        r.op("_LinearBackward", 6)
            .gemm(t, h, 2 * f)
            .gemm(2 * f, h, t);
        r.op("aten::add_", 0).elementwise(3.0 * d.bf16(h));
        r.accumulate("mlp.shared_experts.linear_fc1.weight");
    }
    r.op("_OperationFuserAutogradFunctionBackward", 12)
        .norm(4.0 * d.bf16(h))
        .kernel("rmsnorm finalize", KernelClass::Tiny, 0.0, 0.0);
    r.op("aten::add_", 0).elementwise(3.0 * d.bf16(h));
    r.accumulate("pre_mlp_layernorm.weight");
    r
}
