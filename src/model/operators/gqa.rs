//! Grouped-query attention with fused rotary embedding (Llama). Its sites were never measured here,
//! so their host cost is that of the operator class.

use crate::model::Dims;
use crate::model::operators::attention::{core_attention_backward, core_attention_forward};
use crate::model::recipe::Recipe;
use crate::program::KernelClass;

/// Forward from the input norm (fused into the qkv projection) to the output projection.
pub fn gqa_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("gqa.forward");
    let qkv = (d.heads + 2 * d.kv_heads) * d.qk_dim;
    r.op("_LayerNormLinear", 6)
        .norm(2.0 * d.bf16(d.hidden))
        .gemm(d.tokens, qkv, d.hidden);
    r.op("aten::view", 0)
        .op("aten::split_with_sizes", 2)
        .op("aten::reshape", 1);
    for heads in [d.heads, d.kv_heads] {
        r.op("FusedRoPEFunc", 4)
            .elementwise(2.0 * d.bf16(heads * d.qk_dim));
    }
    r.ops("aten::slice", 1, 2);
    core_attention_forward(&mut r, d);
    r.op("aten::view", 0);
    r.op("_Linear", 2)
        .gemm(d.tokens, d.hidden, d.heads * d.v_dim);
    r
}

/// Backward of [`gqa_forward`].
pub fn gqa_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("gqa.backward");
    let (t, h) = (d.tokens, d.hidden);
    let qkv = (d.heads + 2 * d.kv_heads) * d.qk_dim;
    let out = d.heads * d.v_dim;
    r.op("_LinearBackward", 5).gemm(t, out, h).gemm(h, out, t);
    r.accumulate("self_attention.linear_proj.weight");
    r.op("ViewBackward0", 3);
    core_attention_backward(&mut r, d);
    for heads in [d.kv_heads, d.heads] {
        r.op("FusedRoPEFuncBackward", 4)
            .elementwise(2.0 * d.bf16(heads * d.qk_dim));
    }
    r.op("SplitWithSizesBackward0", 2).copy(2.0 * d.bf16(qkv));
    r.op("ViewBackward0", 3);
    r.op("_LayerNormLinearBackward", 16)
        .gemm(t, h, qkv)
        .gemm(qkv, h, t)
        .norm(4.0 * d.bf16(h))
        .kernel("rmsnorm finalize", KernelClass::Tiny, 0.0, 0.0);
    r.op("aten::add_", 0).elementwise(3.0 * d.bf16(h));
    r.accumulate("self_attention.linear_qkv.layer_norm_weight");
    r.accumulate("self_attention.linear_qkv.weight");
    r
}
