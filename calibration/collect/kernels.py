"""Device time of kernels by shape: GEMM, grouped GEMM as Transformer Engine launches it, attention, norms, copies, Adam.

Most are replayed many times from one CUDA graph, which takes the host out. What cannot be captured is
timed by the profiler's kernel records instead; `method` says which. Small inputs stay in the L2 cache
in both, as they mostly do in a training step.
"""

import statistics

import torch
import torch.nn.functional as F

from common import Writer, say

BF16 = torch.bfloat16


class DeviceTimer:
    def __init__(self, out, machine, deadline):
        self.file, self.machine, self.deadline = Writer(out, "kernels.jsonl"), machine, deadline

    def __call__(self, name, call, copies=20, reps=5, **meta):
        if self.deadline.passed():
            return
        try:
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(copies):
                    call()
            graph.replay()
            torch.cuda.synchronize()
            samples = []
            for _ in range(reps):
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record(), graph.replay(), end.record()
                torch.cuda.synchronize()
                samples.append(start.elapsed_time(end) / copies * 1e3)
            self.file.row(machine=self.machine, name=name, method="graph", us_min=round(min(samples), 4),
                          us_median=round(statistics.median(samples), 4), copies=copies, **meta)
        except Exception as e:  # noqa: BLE001
            self.file.row(machine=self.machine, name=name, method="graph", error=f"{type(e).__name__}: {e}"[:160], **meta)
            torch.cuda.synchronize()

    def profiled(self, name, call, runs=5, **meta):
        """Sum and list of the kernels of one call, from the profiler."""
        if self.deadline.passed():
            return
        from torch.profiler import ProfilerActivity, profile
        try:
            for _ in range(3):
                call()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as prof:
                for _ in range(runs):
                    call()
                torch.cuda.synchronize()
            kernels = {}
            for e in prof.profiler.kineto_results.events():
                if "cuda" in str(e.device_type()).lower():
                    k = kernels.setdefault(e.name()[:120], [0, 0.0])
                    k[0] += 1
                    k[1] += e.duration_ns() / 1e3
            listed = [{"kernel": n, "per_call": k[0] / runs, "us_each": round(k[1] / k[0], 3)} for n, k in kernels.items()]
            self.file.row(machine=self.machine, name=name, method="profiler", kernels=listed,
                          us_median=round(sum(k[1] for k in kernels.values()) / runs, 3), **meta)
        except Exception as e:  # noqa: BLE001
            self.file.row(machine=self.machine, name=name, method="profiler", error=f"{type(e).__name__}: {e}"[:160], **meta)


def memory_bound(timer, quick):
    one = torch.zeros(1, device="cuda")
    timer("kernel.tiny", lambda: one.add_(1.0), copies=200)
    for p in range(10, 29, 6 if quick else 2):
        n = 1 << p
        b, f = torch.randn(n, device="cuda", dtype=BF16), torch.randn(n, device="cuda")
        c, g = torch.empty_like(b), torch.empty_like(f)
        for name, call, size in (
                ("copy_bf16", lambda: c.copy_(b), 4), ("copy_fp32", lambda: g.copy_(f), 8),
                ("add_bf16", lambda: torch.add(b, c, out=c), 6), ("add_fp32_", lambda: g.add_(f), 12),
                ("cast_bf16_fp32", lambda: f.copy_(b), 6), ("cast_fp32_bf16", lambda: c.copy_(f), 6),
                ("fill_bf16", lambda: c.zero_(), 2), ("mul_fp32_", lambda: g.mul_(1.0), 8)):
            timer(name, call, bytes=size * n)
        if 10 <= p <= 26:
            rows = b.view(-1, 1024)
            weight = torch.ones(1024, device="cuda", dtype=BF16)
            timer("softmax_bf16", lambda: torch.softmax(rows, -1), bytes=4 * n)
            timer("rmsnorm_bf16", lambda: F.rms_norm(rows, (1024,), weight), bytes=4 * n)
        del b, c, f, g
    for tensors, numel in ((12, 65536), (32, 524288)):
        src = [torch.randn(numel, device="cuda", dtype=BF16) for _ in range(tensors)]
        dst = [torch.empty_like(t) for t in src]
        timer("foreach_copy_bf16", lambda: torch._foreach_copy_(dst, src), bytes=4 * tensors * numel, tensors=tensors)


def gemms(timer, quick):
    shapes = []
    for tokens in (512,) if quick else (512, 2048, 4096):
        forward = [(tokens, 5632, 1024), (tokens, 1024, 2816), (tokens, 512, 1024), (tokens, 1536, 512), (tokens, 576, 1024),
                   (tokens, 2048, 512), (tokens, 1024, 1024), (tokens, 32000, 1024), (tokens, 32, 1024), (tokens, 64, 1024)]
        shapes += [(m, n, k, "fwd") for m, n, k in forward]
        shapes += [(m, k, n, "dgrad") for m, n, k in forward]
        shapes += [(n, k, m, "wgrad") for m, n, k in forward]
    if not quick:
        shapes += [(m, m, m, "square") for m in (64, 128, 256, 512, 1024, 2048, 4096, 8192)]
        shapes += [(m, 4096, 4096, "llama") for m in (1, 16, 128, 512, 2048, 8192)]
        shapes += [(m, 7168, 2048, "dsv3") for m in (128, 512, 4096)] + [(4096, 18432, 7168, "dsv3"), (4096, 7168, 18432, "dsv3")]
        shapes += [(m, 1024, 512, "expert") for m in (16, 32, 64, 128, 256, 384, 640)]
        shapes += [(m, n, 4096, "wave") for m in (1024,) for n in (1024, 1152, 2048, 2176, 4096, 4352, 8192)]
    for m, n, k, role in dict.fromkeys(shapes):
        a, b = torch.randn(m, k, device="cuda", dtype=BF16), torch.randn(n, k, device="cuda", dtype=BF16)
        c = torch.empty(m, n, device="cuda", dtype=BF16)
        if role == "wgrad":
            at = torch.randn(k, m, device="cuda", dtype=BF16)
            bt = torch.randn(k, n, device="cuda", dtype=BF16)
            timer("gemm_bf16", lambda: torch.mm(at.t(), bt, out=c), copies=20 if m * n * k < 1 << 36 else 4, m=m, n=n, k=k,
                  layout="nt", role=role)
        else:
            timer("gemm_bf16", lambda: torch.mm(a, b.t(), out=c), copies=20 if m * n * k < 1 << 36 else 4, m=m, n=n, k=k,
                  layout="tn", role=role)
        del a, b, c


def transformer_engine(timer, quick):
    import transformer_engine.pytorch as te
    for experts, tokens in ((16, 4096),) if quick else ((8, 4096), (16, 4096), (32, 4096), (16, 16384), (16, 32768)):
        splits = [tokens // experts] * experts
        for name, n_in, n_out in (("fc1", 1024, 1024), ("fc2", 512, 1024)):
            layer = te.GroupedLinear(experts, n_in, n_out, bias=False, params_dtype=BF16, device="cuda")
            x = torch.randn(tokens, n_in, device="cuda", dtype=BF16, requires_grad=True)
            grad = torch.randn(tokens, n_out, device="cuda", dtype=BF16)

            def forward():
                with torch.no_grad():
                    layer(x, splits)

            def both():
                layer(x, splits).backward(grad)
            meta = dict(experts=experts, tokens=tokens, n_in=n_in, n_out=n_out, which=name)
            timer("te_grouped_gemm_fwd", forward, copies=4, **meta)
            timer.profiled("te_grouped_gemm_fwd", forward, **meta)
            timer.profiled("te_grouped_gemm_fwd_bwd", both, **meta)
            del layer, x, grad
    for seq in (512,) if quick else (512, 2048, 4096, 8192):
        attention = te.DotProductAttention(8, (192, 128), attn_mask_type="causal", attention_dropout=0.0, qkv_format="sbhd")
        q, k = (torch.randn(seq, 1, 8, 192, device="cuda", dtype=BF16, requires_grad=True) for _ in range(2))
        v = torch.randn(seq, 1, 8, 128, device="cuda", dtype=BF16, requires_grad=True)
        grad = torch.randn(seq, 1, 8 * 128, device="cuda", dtype=BF16)

        def forward():
            with torch.no_grad():
                attention(q, k, v)
        timer.profiled("te_attention_fwd", forward, seq=seq, heads=8, d_qk=192, d_v=128)
        timer.profiled("te_attention_fwd_bwd", lambda: attention(q, k, v).backward(grad), seq=seq, heads=8, d_qk=192, d_v=128)
        for width in (512, 1024):
            norm = te.RMSNorm(width, device="cuda", dtype=BF16)
            x = torch.randn(seq, 1, width, device="cuda", dtype=BF16, requires_grad=True)
            gx = torch.randn_like(x)
            timer.profiled("te_rmsnorm_fwd_bwd", lambda: norm(x).backward(gx), seq=seq, width=width)
    from transformer_engine.pytorch.optimizers import FusedAdam
    for tensors, numel in ((32, 1 << 16),) if quick else ((8, 1 << 16), (32, 1 << 16), (32, 1 << 18), (32, 1 << 20), (4, 1 << 23)):
        params = [torch.nn.Parameter(torch.randn(numel, device="cuda")) for _ in range(tensors)]
        adam = FusedAdam(params, lr=1e-4)
        for p in params:
            p.grad = torch.randn_like(p)
        timer.profiled("te_fused_adam", adam.step, tensors=tensors, numel=numel, bytes=tensors * numel * 28)


def attention_torch(timer, quick):
    for heads, seq in ((8, 512),) if quick else ((8, 512), (8, 2048), (8, 4096), (8, 8192), (128, 4096)):
        q = torch.randn(1, heads, seq, 192, device="cuda", dtype=BF16)
        v = torch.randn(1, heads, seq, 128, device="cuda", dtype=BF16)
        timer("sdpa_causal_mla", lambda: F.scaled_dot_product_attention(q, q, v, is_causal=True), copies=10, heads=heads,
              seq=seq, d_qk=192, d_v=128)
    params = [torch.randn(1 << 20, device="cuda") for _ in range(32)]
    state = [[torch.zeros_like(p) for p in params] for _ in range(3)]
    steps = [torch.ones((), device="cuda") for _ in params]
    timer("torch_fused_adamw", lambda: torch._fused_adamw_(
        params, state[0], state[1], state[2], [], steps, lr=1e-3, beta1=.9, beta2=.95, weight_decay=.01, eps=1e-8,
        amsgrad=False, maximize=False), copies=5, tensors=32, bytes=32 * (1 << 20) * 28)


def main(out, machine, deadline, quick):
    timer = DeviceTimer(out, machine, deadline)
    for part in (memory_bound, gemms, attention_torch, transformer_engine):
        try:
            part(timer, quick)
        except ImportError as e:
            timer.file.row(machine=machine, name=part.__name__, method="skipped", error=f"{e}"[:160])
            say(f"  kernels {part.__name__} skipped: {e}")
        except Exception as e:  # noqa: BLE001
            timer.file.row(machine=machine, name=part.__name__, method="failed", error=f"{e}"[:160])
        say(f"  kernels {part.__name__}, {deadline.left():.0f} s left")
