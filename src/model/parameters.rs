//! The parameter tensors that a rank holds before any sharding, in registration order.
//!
//! Names and order are what `model.named_parameters()` gives for Megatron's `GPTModel` with
//! Transformer Engine layers: the order in which modules register their weights, which fixes
//! buckets, flat shards and hooks. It was checked name by name against a measured model
//! (`calibration/data/h200-1gpu/parameters.json`).

use crate::spec::{Dtype, MlaDims, ModelSpec, Normalization, Spec};

/// One parameter tensor of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Full name, e.g. `decoder.layers.1.mlp.router.weight`.
    pub name: String,
    /// Shape on this rank, before data-parallel sharding.
    pub shape: Vec<u64>,
    /// Element type.
    pub dtype: Dtype,
    /// Whether it belongs to a routed expert, which is spread over the expert-parallel ranks.
    pub expert: bool,
    /// Transformer layer that owns it (0-based); `None` for embedding, final norm and output layer.
    pub layer: Option<u64>,
    /// Whether embedding and output layer share it, which gives it a bucket of its own.
    pub shared_embedding: bool,
}

impl Parameter {
    /// Elements.
    pub fn numel(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Elements of a row, i.e. of what follows the first dimension: the granularity at which flat
    /// buffers may be cut.
    pub fn row(&self) -> u64 {
        self.shape.iter().skip(1).product()
    }
}

/// The parameters of a rank, in registration order.
pub fn parameters(spec: &Spec) -> Vec<Parameter> {
    let model = &spec.model;
    let tied = !model.untie_embeddings_and_output_weights;
    let mut registry = Registry {
        model,
        layer: None,
        parameters: Vec::new(),
    };
    let embedding = [model.vocab_size, model.hidden_size];
    registry.add("embedding.word_embeddings.weight", &embedding);
    registry.parameters[0].shared_embedding = tied;
    for layer in 0..model.num_layers {
        registry.layer = Some(layer);
        registry.attention();
        if model.is_moe_layer(layer) {
            registry.experts(spec.local_experts());
        } else {
            registry.dense_mlp();
        }
    }
    registry.layer = None;
    registry.norm("decoder.final_layernorm", "", model.hidden_size);
    if !tied {
        registry.add("output_layer.weight", &embedding);
    }
    registry.parameters
}

/// Elements of all parameters over the whole model, experts of every rank counted once.
pub fn model_elements(spec: &Spec) -> u64 {
    let per_rank = parameters(spec);
    let sum = |expert: bool| -> u64 {
        let chosen = per_rank.iter().filter(|p| p.expert == expert);
        chosen.map(Parameter::numel).sum()
    };
    sum(false) + sum(true) * spec.parallel.expert_model_parallel_size
}

/// Collects parameters as modules register them.
struct Registry<'a> {
    model: &'a ModelSpec,
    layer: Option<u64>,
    parameters: Vec<Parameter>,
}

impl Registry<'_> {
    /// Registers a tensor; inside a layer, `name` is relative to it.
    fn add(&mut self, name: &str, shape: &[u64]) {
        let name = match self.layer {
            Some(layer) => format!("decoder.layers.{layer}.{name}"),
            None => name.to_owned(),
        };
        self.parameters.push(Parameter {
            expert: name.contains(".experts."),
            name,
            shape: shape.to_vec(),
            dtype: self.model.params_dtype,
            layer: self.layer,
            shared_embedding: false,
        });
    }

    /// A norm: its weight, and a bias for LayerNorm. `prefix` is `layer_norm_` where Transformer
    /// Engine fuses it into the following linear layer.
    fn norm(&mut self, module: &str, prefix: &str, width: u64) {
        self.add(&format!("{module}.{prefix}weight"), &[width]);
        if self.model.normalization == Normalization::LayerNorm {
            self.add(&format!("{module}.{prefix}bias"), &[width]);
        }
    }

    fn attention(&mut self) {
        match self.model.mla() {
            Some(dims) => self.latent_attention(dims),
            None => self.grouped_query_attention(),
        }
    }

    fn latent_attention(&mut self, dims: MlaDims) {
        let (hidden, heads) = (self.model.hidden_size, self.model.num_attention_heads);
        let query = heads * (dims.qk_head_dim + dims.qk_pos_emb_head_dim);
        self.norm("input_layernorm", "", hidden);
        self.add(
            "self_attention.linear_proj.weight",
            &[hidden, heads * dims.v_head_dim],
        );
        match dims.q_lora_rank {
            None => self.add("self_attention.linear_q_proj.weight", &[query, hidden]),
            Some(rank) => {
                self.add("self_attention.linear_q_down_proj.weight", &[rank, hidden]);
                self.up_projection("self_attention.linear_q_up_proj", query, rank);
            }
        }
        let rank = dims.kv_lora_rank;
        self.add(
            "self_attention.linear_kv_down_proj.weight",
            &[rank + dims.qk_pos_emb_head_dim, hidden],
        );
        let key_value = heads * (dims.qk_head_dim + dims.v_head_dim);
        self.up_projection("self_attention.linear_kv_up_proj", key_value, rank);
    }

    /// A linear layer on a latent, whose norm is fused into it.
    fn up_projection(&mut self, module: &str, out: u64, rank: u64) {
        if self.model.qk_layernorm {
            self.norm(module, "layer_norm_", rank);
        }
        self.add(&format!("{module}.weight"), &[out, rank]);
    }

    fn grouped_query_attention(&mut self) {
        let hidden = self.model.hidden_size;
        let head = self.model.head_dim();
        let query = self.model.num_attention_heads * head;
        let key_value = 2 * self.model.query_groups() * head;
        self.add("self_attention.linear_proj.weight", &[hidden, query]);
        self.norm("self_attention.linear_qkv", "layer_norm_", hidden);
        self.add(
            "self_attention.linear_qkv.weight",
            &[query + key_value, hidden],
        );
        if self.model.qk_layernorm {
            self.norm("self_attention.q_layernorm", "", head);
            self.norm("self_attention.k_layernorm", "", head);
        }
    }

    /// Rows of the first projection of an MLP: the gate doubles it.
    fn gated(&self, width: u64) -> u64 {
        if self.model.swiglu { 2 * width } else { width }
    }

    fn dense_mlp(&mut self) {
        let (hidden, width) = (self.model.hidden_size, self.model.ffn_hidden_size);
        self.norm("mlp.linear_fc1", "layer_norm_", hidden);
        self.add("mlp.linear_fc1.weight", &[self.gated(width), hidden]);
        self.add("mlp.linear_fc2.weight", &[hidden, width]);
    }

    fn experts(&mut self, local_experts: u64) {
        let (hidden, width) = (self.model.hidden_size, self.model.expert_ffn_hidden_size());
        let experts = self.model.num_moe_experts.unwrap_or(0);
        self.norm("pre_mlp_layernorm", "", hidden);
        self.add("mlp.router.weight", &[experts, hidden]);
        for expert in 0..local_experts {
            let name = format!("mlp.experts.linear_fc1.weight{expert}");
            self.add(&name, &[self.gated(width), hidden]);
        }
        for expert in 0..local_experts {
            let name = format!("mlp.experts.linear_fc2.weight{expert}");
            self.add(&name, &[hidden, width]);
        }
        if let Some(width) = self.model.moe_shared_expert_intermediate_size {
            let gated = self.gated(width);
            self.add("mlp.shared_experts.linear_fc1.weight", &[gated, hidden]);
            self.add("mlp.shared_experts.linear_fc2.weight", &[hidden, width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn spec(name: &str, sets: &[&str]) -> Spec {
        Spec::load(name, sets, None).expect("valid")
    }

    #[test]
    fn the_proxy_has_the_measured_parameters_name_by_name() {
        let measured = include_str!("../../calibration/data/h200-1gpu/parameters.json");
        let measured: Vec<Value> = serde_json::from_str(measured).expect("json");
        let ours = parameters(&spec("dsv3-proxy", &[]));
        for (ours, measured) in ours.iter().zip(&measured) {
            let ours = serde_json::json!({
                "name": ours.name,
                "shape": ours.shape,
                "dtype": ours.dtype.torch_name(),
                "expert": ours.expert,
            });
            assert_eq!(&ours, measured);
        }
        assert_eq!(ours.len(), measured.len());
        assert_eq!(ours.len(), 146);
        assert_eq!(ours.iter().map(Parameter::numel).sum::<u64>(), 170_505_216);
        let experts = ours.iter().filter(|p| p.expert).map(Parameter::numel);
        assert_eq!(experts.sum::<u64>(), 75_497_472);
    }

    #[test]
    fn the_large_models_have_their_published_sizes() {
        // Meta's Llama-3-8B has 8,030,261,248 parameters, DeepSeek-V3 671B without its
        // multi-token-prediction layer.
        assert_eq!(model_elements(&spec("llama3-8b", &[])), 8_030_261_248);
        let deepseek = model_elements(&spec("deepseek-v3-671b", &[]));
        assert_eq!(deepseek / 1_000_000_000, 671);
    }

    #[test]
    fn grouped_query_attention_fuses_query_key_and_value() {
        let llama = parameters(&spec("llama3-8b", &[]));
        let layer: Vec<(&str, &[u64])> = llama
            .iter()
            .filter(|p| p.layer == Some(0))
            .map(|p| (p.name.trim_start_matches("decoder.layers.0."), &p.shape[..]))
            .collect();
        let expected: [(&str, &[u64]); 6] = [
            ("self_attention.linear_proj.weight", &[4096, 4096]),
            ("self_attention.linear_qkv.layer_norm_weight", &[4096]),
            ("self_attention.linear_qkv.weight", &[6144, 4096]),
            ("mlp.linear_fc1.layer_norm_weight", &[4096]),
            ("mlp.linear_fc1.weight", &[28672, 4096]),
            ("mlp.linear_fc2.weight", &[4096, 14336]),
        ];
        assert_eq!(layer, expected);
    }

    #[test]
    fn expert_parallelism_divides_the_experts_of_a_rank_but_not_of_the_model() {
        let ep = |n: u64| {
            spec(
                "dsv3-proxy",
                &[&format!("parallel.expert_model_parallel_size={n}")],
            )
        };
        let experts = |spec: &Spec| parameters(spec).iter().filter(|p| p.expert).count();
        assert_eq!(experts(&ep(2)), 2 * experts(&ep(4)));
        assert_eq!(model_elements(&ep(2)), model_elements(&ep(4)));
    }

    #[test]
    fn a_tied_output_layer_adds_no_tensor() {
        let tied = spec(
            "llama3-8b",
            &["model.untie_embeddings_and_output_weights=false"],
        );
        let tied = parameters(&tied);
        assert!(tied[0].shared_embedding);
        assert!(tied.iter().all(|p| p.name != "output_layer.weight"));
    }

    #[test]
    fn layer_norm_has_a_bias_and_rms_norm_has_none() {
        let count = |norm: &str| {
            let set = format!("model.normalization={norm}");
            let all = parameters(&spec("dsv3-proxy", &[&set]));
            all.iter().filter(|p| p.name.ends_with("bias")).count()
        };
        assert_eq!(count("RMSNorm"), 0);
        // Per layer: input, both latents and the MLP's; and the final one.
        assert_eq!(count("LayerNorm"), 4 * 4 + 1);
    }
}
