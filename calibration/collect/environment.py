"""What the numbers were measured on: device, clocks, host CPU, versions, NCCL variables. No host names, no paths."""

import os
import platform
import re
import subprocess

from common import Writer


def _command(*argv):
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout.strip()
    except Exception:  # noqa: BLE001 - a missing tool is an empty answer
        return ""


def _cpu():
    try:
        text = open("/proc/cpuinfo").read()
    except OSError:
        return {}
    find = lambda key: (re.findall(rf"^{key}\s*:\s*(.*)$", text, re.M) or [None])[0]  # noqa: E731
    return {"model": find("model name"), "family": find("cpu family"), "model_number": find("model"),
            "mhz": find("cpu MHz"), "cache": find("cache size"), "cores": os.cpu_count(),
            "affinity": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None}


def _versions():
    from importlib import metadata
    out = {"python": platform.python_version(), "kernel": platform.release().split("-")[0]}
    for name in ("torch", "triton", "transformer-engine", "transformer_engine_torch", "nvidia-nccl-cu13",
                 "nvidia-cublas", "nvidia-cudnn-cu13", "flash-attn", "numpy"):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            out[name] = None
    try:
        import torch
        out.update(cuda=torch.version.cuda, nccl=".".join(map(str, torch.cuda.nccl.version())))
        out["cudnn"] = torch.backends.cudnn.version()
    except Exception as e:  # noqa: BLE001 - two copies of cuDNN make PyTorch refuse to say its version
        out["torch_error"] = str(e)[:160]
    try:
        from megatron.core import package_info
        out["megatron_core"] = package_info.__version__
    except Exception:  # noqa: BLE001
        out["megatron_core"] = None
    return out


def v2_features():
    """Which of v2's later features this Megatron-core has, by looking rather than by version number."""
    try:
        import inspect

        from megatron.core.distributed.fsdp import mcore_fsdp_adapter as adapter
        from megatron.core.distributed.fsdp.src.megatron_fsdp.experimental import module, parameter_group
        from megatron.core.optimizer import fully_sharded_optimizer
    except Exception as e:  # noqa: BLE001
        return {"error": str(e)[:120]}
    checks = inspect.getsource(adapter.FullyShardedDataParallelV2._validate_config)
    group = inspect.getsource(parameter_group.FsdpParameterGroup)
    core = inspect.getsource(module)
    return {
        "hybrid_mesh_in_adapter": "outer_dp_sharding_strategy" not in checks,
        "hybrid_mesh_in_core": "is_last_microbatch" in group,
        "own_no_sync": "no_sync" in adapter.FullyShardedDataParallelV2.__dict__,
        "persistent_model_weight_view": "_model_weight_is_stale" in group,
        "cached_layout": "layout=" in group,
        "own_grad_norm_loop": "get_grad_norm" in fully_sharded_optimizer.FullyShardedOptimizer.__dict__,
        "symmetric_memory": "use_symmetric_memory" in group,
        "unified_communication_stream": "unify_communication_stream" in core,
        "prefetch_budgets": "prefetch_budget" in core or "prefetch_elements" in core,
        "gradient_accumulation_fusion": "gradient_accumulation_fusion" not in checks,
    }


def record(out, machine, when):
    """One row; called at the start and at the end, since clocks and temperature change in between."""
    query = "name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,pcie.link.gen.current"
    row = {"machine": machine, "when": when,
           "gpus": [dict(zip(query.split(","), [x.strip() for x in line.split(",")]))
                    for line in _command("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").splitlines()],
           "cpu": _cpu(), "versions": _versions(),
           "environment": {k: v for k, v in sorted(os.environ.items())
                           if k.startswith(("NCCL_", "TORCH_NCCL", "CUDA_DEVICE_MAX", "CUDA_MODULE", "NVTE_", "TORCH_SYMM",
                                            "PYTORCH_", "OMP_", "NVSHMEM_DISABLE")) and "/" not in v}}
    try:
        import torch
        p = torch.cuda.get_device_properties(0)
        row["device"] = {"name": p.name, "sms": p.multi_processor_count, "l2_bytes": p.L2_cache_size,
                         "memory_bytes": p.total_memory, "capability": f"{p.major}.{p.minor}"}
    except Exception as e:  # noqa: BLE001
        row["device"] = {"error": str(e)[:120]}
    if when == "start":
        row["v2_features"] = v2_features()
    Writer(out, "environment.jsonl").row(**row)
