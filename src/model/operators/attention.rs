//! Multi-latent attention with q and kv low-rank projections, unfused rotary embedding and fused
//! attention, as Transformer Engine runs it.

use crate::model::Dims;
use crate::model::recipe::Recipe;
use crate::program::KernelClass;

/// Forward from the input norm to the output projection.
pub fn mla_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("mla.forward");
    let (t, h, nh) = (d.tokens, d.hidden, d.heads);
    let qk = d.qk_dim + d.rope_dim;
    let kv_out = nh * (d.qk_dim + d.v_dim);
    r.op("_OperationFuserAutogradFunction", 6)
        .norm(2.0 * d.bf16(h));
    r.op("_Linear", 2).gemm(t, d.q_rank, h);
    r.op("_Linear", 2).gemm(t, d.kv_rank + d.rope_dim, h);
    r.op("aten::split_with_sizes", 2);
    r.op("_LayerNormLinear", 6)
        .norm(2.0 * d.bf16(d.q_rank))
        .gemm(t, nh * qk, d.q_rank);
    r.op("aten::view", 0);
    r.op("aten::contiguous", 4).copy(2.0 * d.bf16(d.kv_rank));
    r.op("_LayerNormLinear", 6)
        .norm(2.0 * d.bf16(d.kv_rank))
        .gemm(t, kv_out, d.kv_rank);
    r.op("aten::view", 0)
        .op("aten::unsqueeze", 1)
        .op("aten::slice", 1);
    r.ops("aten::split_with_sizes", 2, 2);
    rotary(&mut r, d, d.bf16(nh * d.rope_dim), true);
    rotary(&mut r, d, d.bf16(d.rope_dim), false);
    r.op("aten::cat", 0).copy(2.0 * d.bf16(nh * qk));
    r.op("aten::expand", 1);
    r.op("aten::cat", 0).copy(2.0 * d.bf16(nh * qk));
    r.op("aten::contiguous", 4).copy(2.0 * d.bf16(nh * d.v_dim));
    r.ops("aten::slice", 1, 2);
    core_attention_forward(&mut r, d);
    r.op("aten::eq", 0)
        .op("aten::all", 2)
        .op("aten::item", 1)
        .op("aten::view", 0);
    r.op("_Linear", 2).gemm(t, h, nh * d.v_dim);
    r
}

/// Rotary embedding of one tensor of `bytes`; `heads` says whether it has a head axis.
fn rotary(r: &mut Recipe, d: &Dims, bytes: f64, heads: bool) {
    let angle = 4.0 * (d.seq * d.rope_dim) as f64;
    r.op("aten::alias", 0).ops("aten::slice", 1, 3);
    r.op("aten::cat", 0).copy(2.0 * bytes);
    for function in ["aten::cos", "aten::sin"] {
        r.op(function, 0).elementwise(2.0 * angle);
        r.op("aten::mul", 0).elementwise(2.0 * angle);
        r.op("aten::to", 3).cast(1.5 * angle);
    }
    let strided = |r: &mut Recipe| {
        let class = if heads {
            KernelClass::Copy
        } else {
            KernelClass::Elementwise
        };
        r.op("aten::mul", 0).kernel("mul", class, 0.0, 2.0 * bytes);
    };
    strided(r);
    r.op("aten::chunk", 7);
    r.op("aten::neg", 0).copy(bytes);
    r.op("aten::cat", 0).copy(2.0 * bytes);
    strided(r);
    r.op("aten::add", 0).elementwise(3.0 * bytes);
    r.op("aten::cat", 0).copy(2.0 * bytes);
}

/// Fused attention: seed extraction, memset, the kernel.
pub(super) fn core_attention_forward(r: &mut Recipe, d: &Dims) {
    let (flops, bytes) = attention_work(d);
    r.op("FusedAttnFunc", 8).tiny().memset().kernel(
        "attention forward",
        KernelClass::AttentionForward,
        flops,
        bytes,
    );
}

/// Fused attention backward: memset, the dO·O product, the kernel, conversion of dQ.
pub(super) fn core_attention_backward(r: &mut Recipe, d: &Dims) {
    let (flops, bytes) = attention_work(d);
    let out = d.bf16(d.heads * d.v_dim);
    r.op("FusedAttnFuncBackward", 12)
        .memset()
        .elementwise(2.0 * out)
        .kernel(
            "attention backward",
            KernelClass::AttentionBackward,
            2.5 * flops,
            2.0 * bytes,
        )
        .cast(3.0 * d.bf16(d.heads * (d.qk_dim + d.rope_dim)));
}

/// Causal attention: half of the full score matrix. Flops of the forward; bytes of q, k, v, out.
fn attention_work(d: &Dims) -> (f64, f64) {
    let qk = d.qk_dim + d.rope_dim;
    let scores = (d.batch * d.heads * d.seq * d.seq) as f64 / 2.0;
    let flops = 2.0 * scores * (qk + d.v_dim) as f64;
    let bytes = d.bf16(d.heads * (qk + d.v_dim)) + d.bf16(d.kv_heads * (qk + d.v_dim));
    (flops, bytes)
}

/// Backward from the output projection to the input norm.
pub fn mla_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("mla.backward");
    let (t, h, nh) = (d.tokens, d.hidden, d.heads);
    let qk = d.qk_dim + d.rope_dim;
    let kv_out = nh * (d.qk_dim + d.v_dim);
    r.op("_LinearBackward", 5)
        .gemm(t, nh * d.v_dim, h)
        .gemm(h, nh * d.v_dim, t);
    r.accumulate("self_attention.linear_proj.weight");
    r.op("ViewBackward0", 3);
    core_attention_backward(&mut r, d);
    r.op("CloneBackward0", 1).op("CatBackward0", 7);
    r.op("ExpandBackward0", 2).reduce(d.bf16(nh * d.rope_dim));
    r.ops("CatBackward0", 7, 2);
    rotary_backward(&mut r, d.bf16(d.rope_dim));
    r.op("CatBackward0", 7);
    rotary_backward(&mut r, d.bf16(nh * d.rope_dim));
    r.op("SplitWithSizesBackward0", 2)
        .copy(2.0 * d.bf16(kv_out));
    r.op("SplitWithSizesBackward0", 2)
        .copy(2.0 * d.bf16(nh * qk));
    r.op("UnsqueezeBackward0", 3).op("ViewBackward0", 3);
    let norm_linear = |r: &mut Recipe, rank: u64, out: u64, name: &str| {
        r.op("_LayerNormLinearBackward", 16)
            .gemm(t, rank, out)
            .gemm(out, rank, t)
            .norm(4.0 * d.bf16(rank))
            .kernel("rmsnorm finalize", KernelClass::Tiny, 0.0, 0.0);
        r.accumulate(&format!("self_attention.{name}.layer_norm_weight"));
        r.accumulate(&format!("self_attention.{name}.weight"));
    };
    norm_linear(&mut r, d.kv_rank, kv_out, "linear_kv_up_proj");
    r.op("CloneBackward0", 1).op("ViewBackward0", 3);
    norm_linear(&mut r, d.q_rank, nh * qk, "linear_q_up_proj");
    r.op("SplitWithSizesBackward0", 2)
        .copy(2.0 * d.bf16(d.kv_rank + d.rope_dim));
    let kv_down = d.kv_rank + d.rope_dim;
    r.op("_LinearBackward", 6)
        .gemm(t, h, kv_down)
        .gemm(kv_down, h, t);
    r.accumulate("self_attention.linear_kv_down_proj.weight");
    r.op("_LinearBackward", 6)
        .gemm(t, h, d.q_rank)
        .gemm(d.q_rank, h, t);
    r.op("aten::add_", 0).elementwise(3.0 * d.bf16(h));
    r.accumulate("self_attention.linear_q_down_proj.weight");
    r.op("_OperationFuserAutogradFunctionBackward", 12)
        .norm(4.0 * d.bf16(h))
        .kernel("rmsnorm finalize", KernelClass::Tiny, 0.0, 0.0);
    r.op("aten::add_", 0).elementwise(3.0 * d.bf16(h));
    r.accumulate("input_layernorm.weight");
    r
}

/// Backward of [`rotary`], ending with the slices that undo the interleaving.
fn rotary_backward(r: &mut Recipe, bytes: f64) {
    r.op("AddBackward0", 1);
    r.op("MulBackward0", 2).elementwise(2.0 * bytes);
    r.op("CatBackward0", 7);
    r.op("NegBackward0", 2).copy(bytes);
    r.op("SplitBackward0", 2).copy(2.0 * bytes);
    r.op("MulBackward0", 2).elementwise(2.0 * bytes);
    r.op("aten::add_", 0).elementwise(3.0 * bytes);
    r.op("CatBackward0", 7);
    r.op("SliceBackward0", 9).fill(bytes).copy(bytes);
    r.op("SliceBackward0", 9).fill(bytes).copy(bytes);
    r.op("aten::add_", 0).elementwise(3.0 * bytes);
    r.op("SliceBackward0", 9).fill(bytes);
    r.op("AliasBackward0", 2);
    r.op("aten::add_", 0).elementwise(3.0 * bytes);
}
