//! The parts of the optimizer step that the implementations share: global norm, clipping, Adam.

use crate::model::recipe::Recipe;
use crate::program::{Collective, KernelClass};

use super::writer::{Call, Writer, bytes_kernel};

/// Elements that one multi-tensor launch covers: 320 blocks of 65,536 elements
/// (`multi_tensor_apply.cuh`).
const MULTI_TENSOR_ELEMENTS: u64 = 320 * 65_536;

/// Launches of a multi-tensor kernel over `elements`.
fn multi_tensor_launches(elements: u64) -> u64 {
    elements.div_ceil(MULTI_TENSOR_ELEMENTS).max(1)
}

/// A bare launch from a C++ extension: the profiler shows the runtime call alone.
fn bare_launches(
    w: &mut Writer,
    cause: &str,
    class: &str,
    count: u64,
    bytes: u64,
    kind: KernelClass,
) {
    for _ in 0..count {
        w.python(cause, class, 1);
        let stream = w.streams.compute;
        w.launch(
            cause,
            stream,
            bytes_kernel("multi_tensor", kind, bytes / count.max(1)),
        );
    }
}

/// Multi-tensor l2 norm of this rank's shard, its all-reduce and the root.
pub fn global_norm(w: &mut Writer, cause: &str, elements: u64) {
    let mut r = Recipe::new("optimizer.norm");
    for _ in 0..3 {
        r.op("aten::zeros", 3).tiny();
    }
    r.ops("aten::empty", 0, 3);
    w.recipe(cause, &r, &mut |_, _| {});
    let launches = multi_tensor_launches(elements);
    bare_launches(
        w,
        cause,
        "optimizer.norm/python",
        launches,
        4 * elements,
        KernelClass::Reduction,
    );
    bare_launches(
        w,
        cause,
        "optimizer.norm.cleanup/python",
        1,
        0,
        KernelClass::Tiny,
    );
    let mut r = Recipe::new("optimizer.norm.pow");
    r.op("aten::pow", 2).tiny();
    w.recipe(cause, &r, &mut |_, _| {});
    norm_all_reduce(w, cause);
}

/// The 4-byte all-reduce of the squared norm and its root.
pub fn norm_all_reduce(w: &mut Writer, cause: &str) {
    let call = Call {
        class: "optimizer.norm/c10d::allreduce_",
        op: Collective::AllReduce,
        comm: w.comms.world,
        ranks: 0,
        stream: w.streams.compute,
        bytes: 4,
    };
    w.collective(cause, call);
    let mut r = Recipe::new("optimizer.norm.root");
    r.op("aten::pow", 2).tiny();
    w.recipe(cause, &r, &mut |_, _| {});
}

/// Clip factor and multi-tensor scale of `local` gradients.
pub fn clip(w: &mut Writer, cause: &str, local: u64, elements: u64) {
    for _ in 0..local {
        w.operator(cause, "optimizer.clip/aten::detach", 2);
    }
    let mut r = Recipe::new("optimizer.clip.factor");
    r.op("aten::add", 0).tiny();
    r.op("aten::reciprocal", 0).tiny();
    r.op("aten::mul", 0).tiny();
    r.op("aten::zeros", 3).tiny();
    r.op("aten::clamp_max_", 0).tiny();
    w.recipe(cause, &r, &mut |_, _| {});
    if local > 0 {
        let launches = multi_tensor_launches(elements);
        let class = "optimizer.clip.scale/python";
        bare_launches(
            w,
            cause,
            class,
            launches,
            8 * elements,
            KernelClass::Elementwise,
        );
    }
}

/// Multi-tensor Adam over the optimizer's parameter groups: how many parameters of each are DTensors,
/// whose weight, gradient and state are unwrapped one by one, and how many elements they have. A group
/// without elements launches nothing. `bytes_per_element` counts reads and writes.
pub fn adam(w: &mut Writer, cause: &str, groups: &[(u64, u64)], bytes_per_element: u64) {
    w.python(cause, "optimizer.adam.begin/python", 1);
    for &(detached, elements) in groups.iter().filter(|(_, elements)| *elements > 0) {
        for _ in 0..3 * detached {
            w.operator(cause, "optimizer.adam/aten::detach", 2);
        }
        let launches = multi_tensor_launches(elements);
        let bytes = bytes_per_element * elements;
        let class = "optimizer.adam.apply/python";
        bare_launches(w, cause, class, launches, bytes, KernelClass::Adam);
    }
}
