//! Dense feed-forward layer and the residual addition.

use crate::model::Dims;
use crate::model::recipe::Recipe;
use crate::program::KernelClass;

/// Residual addition, compiled by TorchDynamo; `component` names where it stands.
pub fn bias_dropout_add(d: &Dims, component: &str) -> Recipe {
    let mut r = Recipe::new(component);
    r.op("TorchDynamo Cache Lookup", 0);
    r.op("Torch-Compiled Region", 5)
        .elementwise(3.0 * d.bf16(d.hidden));
    r
}

/// Backward of the residual addition.
pub fn bias_dropout_add_backward(component: &str) -> Recipe {
    let mut r = Recipe::new(component);
    r.op("CompiledFunctionBackward", 1);
    r
}

/// Norm, up projection, SwiGLU, down projection.
pub fn dense_mlp_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("mlp.forward");
    r.op("_LayerNormLinear", 6)
        .norm(2.0 * d.bf16(d.hidden))
        .gemm(d.tokens, 2 * d.ffn, d.hidden);
    r.op("aten::view", 0);
    r.op("SwiGLUFunction", 6).elementwise(d.bf16(3 * d.ffn));
    r.op("aten::view", 0);
    r.op("_Linear", 2).gemm(d.tokens, d.hidden, d.ffn);
    r
}

/// Backward of [`dense_mlp_forward`].
pub fn dense_mlp_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("mlp.backward");
    let (t, h, f) = (d.tokens, d.hidden, d.ffn);
    r.op("_LinearBackward", 6).gemm(t, f, h).gemm(h, f, t);
    r.accumulate("mlp.linear_fc2.weight");
    r.op("ViewBackward0", 3);
    r.op("SwiGLUFunctionBackward", 7).elementwise(d.bf16(5 * f));
    r.op("ViewBackward0", 3);
    r.op("_LayerNormLinearBackward", 17)
        .gemm(t, h, 2 * f)
        .gemm(2 * f, h, t)
        .norm(4.0 * d.bf16(h))
        .kernel("rmsnorm finalize", KernelClass::Tiny, 0.0, 0.0);
    r.op("aten::add_", 0).elementwise(3.0 * d.bf16(h));
    r.accumulate("mlp.linear_fc1.layer_norm_weight");
    r.accumulate("mlp.linear_fc1.weight");
    r
}
