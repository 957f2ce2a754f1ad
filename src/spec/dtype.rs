//! Dtypes of parameters, gradients and optimizer state.

use super::model::choice;

choice! {
    /// An element type.
    Dtype {
        /// 4-byte float.
        #[default]
        Fp32 = "fp32",
        /// 2-byte brain float.
        Bf16 = "bf16",
        /// 2-byte half.
        Fp16 = "fp16",
        /// 1-byte float (optimizer moments only).
        Fp8 = "fp8",
        /// 8-byte float (router only).
        Fp64 = "fp64",
    }
}

impl Dtype {
    /// Size of an element in bytes.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Fp64 => 8,
            Dtype::Fp32 => 4,
            Dtype::Bf16 | Dtype::Fp16 => 2,
            Dtype::Fp8 => 1,
        }
    }

    /// PyTorch's name: `bfloat16`, `float32`, ...
    pub fn torch_name(self) -> &'static str {
        match self {
            Dtype::Fp64 => "float64",
            Dtype::Fp32 => "float32",
            Dtype::Bf16 => "bfloat16",
            Dtype::Fp16 => "float16",
            Dtype::Fp8 => "float8_e4m3fn",
        }
    }
}
