//! `[model]`: the shape of the transformer, in Megatron's names.

use serde::{Deserialize, Serialize};

use super::dtype::Dtype;
use super::layer_freq::MoeLayerFreq;

/// `[model]`. Keys and defaults are those of Megatron's `TransformerConfig` (or of its command line
/// where the class has none).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a section with its keys")]
pub struct ModelSpec {
    /// Transformer layers.
    pub num_layers: u64,
    /// Width of the residual stream.
    pub hidden_size: u64,
    /// Width of the dense MLP (before the gate doubles it).
    pub ffn_hidden_size: u64,
    /// Attention heads.
    pub num_attention_heads: u64,
    /// Key-value heads of grouped-query attention; as many as `num_attention_heads` if absent.
    pub num_query_groups: Option<u64>,
    /// Dimension of a head; `hidden_size / num_attention_heads` if absent. Not with MLA.
    pub kv_channels: Option<u64>,
    /// Multi-head latent attention (DeepSeek) instead of (grouped) multi-head attention.
    #[serde(default)]
    pub multi_latent_attention: bool,
    /// MLA: rank of the query's low-rank projection; a plain projection if absent.
    pub q_lora_rank: Option<u64>,
    /// MLA: rank of the joint key-value projection.
    pub kv_lora_rank: Option<u64>,
    /// MLA: head dimension of query and key without rotary embedding.
    pub qk_head_dim: Option<u64>,
    /// MLA: head dimension of query and key with rotary embedding.
    pub qk_pos_emb_head_dim: Option<u64>,
    /// MLA: head dimension of the value.
    pub v_head_dim: Option<u64>,
    /// Normalise query and key (with MLA: the low-rank latents).
    #[serde(default)]
    pub qk_layernorm: bool,
    /// Experts of a mixture-of-experts layer over all ranks; a dense model if absent.
    pub num_moe_experts: Option<u64>,
    /// Width of one expert; `ffn_hidden_size` if absent.
    pub moe_ffn_hidden_size: Option<u64>,
    /// Width of all shared experts together; no shared expert if absent.
    pub moe_shared_expert_intermediate_size: Option<u64>,
    /// Experts that each token is sent to.
    #[serde(default = "two")]
    pub moe_router_topk: u64,
    /// Which layers hold experts: every N-th from the first on, one flag (0 or 1) a layer, or
    /// Megatron's expression for the flags, `"([0]*3+[1]*58)"`.
    pub moe_layer_freq: Option<MoeLayerFreq>,
    /// The first so many layers are dense, all others hold experts: `moe_layer_freq` as DeepSeek
    /// states it, which stays right when the number of layers changes.
    pub first_k_dense_replace: Option<u64>,
    /// How the router turns logits into weights.
    #[serde(default)]
    pub moe_router_score_function: RouterScore,
    /// Balance experts by a bias that is updated outside the gradient.
    #[serde(default)]
    pub moe_router_enable_expert_bias: bool,
    /// Auxiliary loss that balances the experts.
    #[serde(default)]
    pub moe_router_load_balancing_type: LoadBalancing,
    /// Weight of the auxiliary loss; at 0 it is not computed.
    #[serde(default)]
    pub moe_aux_loss_coeff: f64,
    /// Dtype of the router's product and scores; that of the activations if absent.
    pub moe_router_dtype: Option<Dtype>,
    /// Softmax before the choice of experts instead of after it.
    #[serde(default)]
    pub moe_router_pre_softmax: bool,
    /// Groups of experts for group-limited routing.
    pub moe_router_num_groups: Option<u64>,
    /// Groups that each token may choose from.
    pub moe_router_group_topk: Option<u64>,
    /// Factor on the routing weights.
    pub moe_router_topk_scaling_factor: Option<f64>,
    /// How tokens reach their experts.
    #[serde(default)]
    pub moe_token_dispatcher_type: TokenDispatcher,
    /// Library behind the flex dispatcher.
    pub moe_flex_dispatcher_backend: Option<FlexBackend>,
    /// Largest number of tokens an expert takes, as a multiple of the mean; no token is dropped if
    /// absent.
    pub moe_expert_capacity_factor: Option<f64>,
    /// Pad each expert's tokens to its capacity, so that no size depends on the data.
    #[serde(default)]
    pub moe_pad_expert_input_to_capacity: bool,
    /// All experts of a rank in one grouped GEMM call.
    #[serde(default)]
    pub moe_grouped_gemm: bool,
    /// Fused permutation kernels.
    #[serde(default)]
    pub moe_permute_fusion: bool,
    /// Rows of the embedding, padding included.
    pub vocab_size: u64,
    /// The output layer has its own weight.
    #[serde(default)]
    pub untie_embeddings_and_output_weights: bool,
    /// Kind of norm.
    #[serde(default)]
    pub normalization: Normalization,
    /// Gated MLP with SiLU, which doubles the first projection.
    #[serde(default)]
    pub swiglu: bool,
    /// Fused rotary embedding.
    #[serde(default)]
    pub apply_rope_fusion: bool,
    /// Dtype of parameters and activations.
    #[serde(default = "bf16")]
    pub params_dtype: Dtype,
}

fn two() -> u64 {
    2
}

fn bf16() -> Dtype {
    Dtype::Bf16
}

/// Head dimensions and ranks of multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaDims {
    /// Rank of the query projection; none for a plain one.
    pub q_lora_rank: Option<u64>,
    /// Rank of the key-value projection.
    pub kv_lora_rank: u64,
    /// Query and key dimension without rotary embedding.
    pub qk_head_dim: u64,
    /// Query and key dimension with rotary embedding.
    pub qk_pos_emb_head_dim: u64,
    /// Value dimension.
    pub v_head_dim: u64,
}

impl ModelSpec {
    /// The MLA dimensions, or `None` for other attention. A validated spec has them all; the
    /// defaults are those of Megatron's `MLATransformerConfig`.
    pub fn mla(&self) -> Option<MlaDims> {
        self.multi_latent_attention.then(|| MlaDims {
            q_lora_rank: self.q_lora_rank,
            kv_lora_rank: self.kv_lora_rank.unwrap_or(512),
            qk_head_dim: self.qk_head_dim.unwrap_or(128),
            qk_pos_emb_head_dim: self.qk_pos_emb_head_dim.unwrap_or(64),
            v_head_dim: self.v_head_dim.unwrap_or(128),
        })
    }

    /// Key-value heads.
    pub fn query_groups(&self) -> u64 {
        self.num_query_groups.unwrap_or(self.num_attention_heads)
    }

    /// Dimension of a head of (grouped) multi-head attention.
    pub fn head_dim(&self) -> u64 {
        self.kv_channels
            .unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Width of one expert.
    pub fn expert_ffn_hidden_size(&self) -> u64 {
        self.moe_ffn_hidden_size.unwrap_or(self.ffn_hidden_size)
    }

    /// Whether layer `layer` (0-based) holds experts.
    pub fn is_moe_layer(&self, layer: u64) -> bool {
        if self.num_moe_experts.is_none() {
            return false;
        }
        match (&self.moe_layer_freq, self.first_k_dense_replace) {
            (Some(MoeLayerFreq::Every(n)), _) => layer.is_multiple_of((*n).max(1)),
            (Some(MoeLayerFreq::Pattern(flags)), _) => {
                flags.get(layer as usize).is_some_and(|&flag| flag != 0)
            }
            (None, Some(dense)) => layer >= dense,
            (None, None) => true,
        }
    }

    /// Number of layers that hold experts.
    pub fn moe_layers(&self) -> u64 {
        (0..self.num_layers)
            .filter(|&layer| self.is_moe_layer(layer))
            .count() as u64
    }
}

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant,)+
        }
        impl $name {
            /// Every choice, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The choice of that name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|choice| choice.name() == name)
            }

            /// The name used in the spec.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(super) use choice;

choice! {
    /// `moe_router_score_function`.
    RouterScore {
        /// Softmax over the experts.
        #[default]
        Softmax = "softmax",
        /// Sigmoid of each logit, normalised over the chosen experts.
        Sigmoid = "sigmoid",
    }
}

choice! {
    /// `moe_router_load_balancing_type`.
    LoadBalancing {
        /// Auxiliary loss over the microbatch.
        #[default]
        AuxLoss = "aux_loss",
        /// Auxiliary loss over each sequence.
        SeqAuxLoss = "seq_aux_loss",
        /// None.
        None = "none",
    }
}

choice! {
    /// `moe_token_dispatcher_type`.
    TokenDispatcher {
        /// All-gather of all tokens (Megatron's default; not modelled).
        #[default]
        AllGather = "allgather",
        /// Alltoall whose sizes the host must learn from the device.
        AllToAll = "alltoall",
        /// Fused dispatch kernels without device-to-host copies.
        Flex = "flex",
    }
}

choice! {
    /// `moe_flex_dispatcher_backend`.
    FlexBackend {
        /// DeepEP.
        #[default]
        DeepEp = "deepep",
        /// HybridEP.
        HybridEp = "hybridep",
    }
}

choice! {
    /// `normalization`.
    Normalization {
        /// Mean and variance, with a bias.
        #[default]
        LayerNorm = "LayerNorm",
        /// Root mean square, no bias.
        RmsNorm = "RMSNorm",
    }
}
