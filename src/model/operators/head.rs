//! Data, embedding, output head and loss.

use crate::model::Dims;
use crate::model::recipe::Recipe;
use crate::program::KernelClass;

/// Batch drawing and word embedding.
pub fn embedding_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("embedding.forward");
    r.op("aten::embedding", 12).kernel(
        "embedding",
        KernelClass::Index,
        0.0,
        2.0 * d.bf16(d.hidden),
    );
    r.op("aten::transpose", 1)
        .op("aten::dropout", 0)
        .op("MakeViewlessTensor", 2);
    r
}

/// Backward of [`embedding_forward`].
pub fn embedding_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("embedding.backward");
    let table = 2.0 * (d.vocab * d.hidden) as f64;
    r.op("MakeViewlessTensorBackward", 1)
        .op("TransposeBackward0", 3);
    r.op("EmbeddingBackward0", 8).fill(table).kernel(
        "embedding backward",
        KernelClass::Index,
        0.0,
        3.0 * d.bf16(d.hidden),
    );
    r.accumulate("embedding.word_embeddings.weight");
    r
}

/// Final norm and output projection.
pub fn head_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("head.forward");
    r.op("_OperationFuserAutogradFunction", 6)
        .norm(2.0 * d.bf16(d.hidden));
    r.op("MakeViewlessTensor", 2)
        .op("_CopyToModelParallelRegion", 2);
    r.op("LinearWithGradAccumulationAndAsyncCommunication", 8)
        .memset()
        .gemm(d.tokens, d.vocab, d.hidden);
    r.op("aten::transpose", 1);
    r
}

/// Backward of [`head_forward`].
pub fn head_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("head.backward");
    r.op(
        "LinearWithGradAccumulationAndAsyncCommunicationBackward",
        14,
    )
    .gemm(d.tokens, d.hidden, d.vocab)
    .tiny()
    .memset()
    .gemm(d.vocab, d.hidden, d.tokens);
    r.accumulate("output_layer.weight");
    r.op("_CopyToModelParallelRegionBackward", 1)
        .op("MakeViewlessTensorBackward", 1);
    r.op("_OperationFuserAutogradFunctionBackward", 12)
        .norm(4.0 * d.bf16(d.hidden))
        .kernel("rmsnorm finalize", KernelClass::Tiny, 0.0, 0.0);
    r.accumulate("decoder.final_layernorm.weight");
    r
}

/// Vocabulary-parallel cross entropy with fp32 logits.
pub fn loss_forward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("loss.forward");
    let logits = 4.0 * (d.tokens * d.vocab) as f64;
    let rows = 8.0 * d.tokens as f64;
    r.op("_VocabParallelCrossEntropy", 58)
        .cast(1.5 * logits)
        .reduce(logits);
    r.elementwise(2.0 * logits);
    for _ in 0..7 {
        r.elementwise(2.0 * rows);
    }
    r.kernel("exp", KernelClass::Elementwise, 0.0, 2.0 * logits)
        .reduce(logits);
    for _ in 0..4 {
        r.elementwise(2.0 * rows);
    }
    r.elementwise(2.0 * logits).tiny();
    r.op("aten::transpose", 1);
    r
}

/// Backward of [`loss_forward`].
pub fn loss_backward(d: &Dims) -> Recipe {
    let mut r = Recipe::new("loss.backward");
    let logits = 4.0 * (d.tokens * d.vocab) as f64;
    let rows = 8.0 * d.tokens as f64;
    r.op("TransposeBackward0", 3);
    r.op("_VocabParallelCrossEntropyBackward", 30);
    for _ in 0..6 {
        r.elementwise(2.0 * rows);
    }
    r.elementwise(2.0 * logits);
    r.op("aten::to", 3).cast(1.5 * logits);
    r
}
