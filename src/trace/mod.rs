//! PyTorch profiler traces in, Perfetto-readable JSON out.
