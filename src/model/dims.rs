//! Sizes that operators need, derived once from the spec.

/// Sizes of one microbatch on one rank. Elements unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dims {
    /// Tokens of a microbatch: sequence length times micro-batch size.
    pub tokens: u64,
    /// Sequence length.
    pub seq: u64,
    /// Micro-batch size.
    pub batch: u64,
    /// Hidden size.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
    /// Key/value heads (grouped-query attention); equal to `heads` for MLA.
    pub kv_heads: u64,
    /// Whether attention is multi-latent.
    pub mla: bool,
    /// Head dimension without position (MLA `qk_head_dim`; the head dimension otherwise).
    pub qk_dim: u64,
    /// Rotary head dimension (MLA); 0 otherwise.
    pub rope_dim: u64,
    /// Value head dimension.
    pub v_dim: u64,
    /// Rank of the query projection (MLA).
    pub q_rank: u64,
    /// Rank of the key/value projection (MLA).
    pub kv_rank: u64,
    /// Dense feed-forward size.
    pub ffn: u64,
    /// Routed experts over all ranks; 0 for a dense model.
    pub experts: u64,
    /// Experts on this rank.
    pub local_experts: u64,
    /// Experts a token is sent to.
    pub topk: u64,
    /// Feed-forward size of one expert.
    pub moe_ffn: u64,
    /// Feed-forward size of the shared expert; 0 for none.
    pub shared_ffn: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// Layers.
    pub layers: u64,
}

impl Dims {
    /// Token copies that leave (and, balanced, reach) a rank in a dispatch.
    pub fn dispatched(&self) -> u64 {
        self.tokens * self.topk
    }

    /// Mean token copies of one local expert.
    pub fn tokens_per_expert(&self) -> u64 {
        (self.dispatched() / self.local_experts.max(1)).max(1)
    }

    /// Bytes of a bf16 activation of `width` per token.
    pub fn bf16(&self, width: u64) -> f64 {
        2.0 * (self.tokens * width) as f64
    }
}
