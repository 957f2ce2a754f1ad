//! Writes a profiler trace of any size, for measuring the reader: `make_trace BYTES > trace.json`.
//!
//! The events imitate what Kineto records of a host-bound step: operators that nest, calls with
//! correlations, kernels, arrows, all with the arguments that real files carry. Deterministic.

use std::io::{BufWriter, Write as _};

/// A launch with its operators, its kernel and its arrow: what most of a trace consists of.
fn launch(out: &mut impl std::io::Write, index: u64) -> std::io::Result<u64> {
    let (ts, fraction) = (5_247_983_907_192 + index * 31, index * 7919 % 1000);
    let operator = [
        "aten::mul",
        "aten::copy_",
        "aten::add_",
        "aten::empty_strided",
    ][index as usize % 4];
    let thread = if index.is_multiple_of(2) { 681 } else { 729 };
    let text = format!(
        "  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"autograd::engine::evaluate_function: \
         MulBackward0\", \"pid\": 681, \"tid\": {thread},\n    \"ts\": {ts}.{fraction:03}, \"dur\": 29.5,\n    \
         \"args\": {{\n      \"External id\": {index},\"Record function id\": 0, \"Sequence number\": {index}, \
         \"Fwd thread id\": 1, \"Ev Idx\": {index}\n    }}\n  }},\n  {{\n    \"ph\": \"X\", \"cat\": \"cpu_op\", \
         \"name\": \"{operator}\", \"pid\": 681, \"tid\": {thread},\n    \"ts\": {ts}.{fraction:03}, \"dur\": 21.25,\n    \
         \"args\": {{\n      \"External id\": {index},\"Record function id\": 0, \"Ev Idx\": {index}\n    }}\n  }},\n  \
         {{\n    \"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"cudaLaunchKernel\", \"pid\": 681, \"tid\": {thread},\n    \
         \"ts\": {ts}.{fraction:03}, \"dur\": 7.125,\n    \"args\": {{\n      \"External id\": {index}, \"cbid\": 211, \
         \"correlation\": {index}\n    }}\n  }},\n  {{\n    \"ph\": \"s\", \"id\": {index}, \"pid\": 681, \"tid\": {thread}, \
         \"ts\": {ts}.{fraction:03}, \"cat\": \"ac2g\", \"name\": \"ac2g\"\n  }},\n  {{\n    \"ph\": \"X\", \"cat\": \"kernel\", \
         \"name\": \"void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, \
         at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, \
         at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, \
         std::array<char*, 3ul>)\", \"pid\": 0, \"tid\": 7,\n    \"ts\": {}.{fraction:03}, \"dur\": 0.96,\n    \
         \"args\": {{\n      \"External id\": {index}, \"queued\": 0, \"device\": 0, \"context\": 1,\n      \
         \"stream\": 7, \"correlation\": {index},\n      \"registers per thread\": 32, \"shared memory\": 0,\n      \
         \"blocks per SM\": 0.007576, \"warps per SM\": 0.030303,\n      \"grid\": [1, 1, 1], \"block\": [128, 1, 1],\n      \
         \"est. achieved occupancy %\": 0\n    }}\n  }},\n  {{\n    \"ph\": \"f\", \"id\": {index}, \"pid\": 0, \"tid\": 7, \
         \"ts\": {}.{fraction:03}, \"cat\": \"ac2g\", \"name\": \"ac2g\", \"bp\": \"e\"\n  }},\n",
        ts + 9,
        ts + 9
    );
    out.write_all(text.as_bytes())?;
    Ok(text.len() as u64)
}

fn main() -> std::io::Result<()> {
    let bytes: u64 = std::env::args()
        .nth(1)
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or(1 << 30);
    let mut out = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    out.write_all(b"{\n  \"schemaVersion\": 1,\n  \"traceEvents\": [\n")?;
    let (mut written, mut index) = (0, 1);
    while written < bytes {
        written += launch(&mut out, index)?;
        index += 1;
    }
    out.write_all(
        b"  {\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#0\", \"pid\": 681, \
          \"tid\": 681, \"ts\": 5247983907192.000, \"dur\": 1000000.000}\n  ],\n  \"traceName\": \"made\"\n}\n",
    )?;
    out.flush()
}
