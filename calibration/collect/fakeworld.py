"""Rank 0 of an N-rank world on one GPU: PyTorch's fake process group, with device copies as stand-ins.

The fake group runs a collective's whole host path down to c10d and returns. It fills the output of an
all-gather by one copy per rank, but leaves the outputs of reduce-scatter and all-to-all untouched;
those get a plain copy here, on the stream that issued the collective, so that shapes, streams, memory
and finite values stay real. NCCL's own host cost and transfer time are what such a run lacks;
collectives.py measures those apart.
"""

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def init_fake(world):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    torch.cuda.set_device(0)
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    _fill_outputs()


def _fill_outputs():
    real_reduce_scatter, real_all_to_all = dist.reduce_scatter_tensor, dist.all_to_all_single

    def reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        work = real_reduce_scatter(output, input, op=op, group=group, async_op=async_op)
        with torch.no_grad():
            output.copy_(input.view(-1)[: output.numel()].view(output.shape))
        return work

    def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):
        work = real_all_to_all(output, input, output_split_sizes, input_split_sizes, group=group, async_op=async_op)
        with torch.no_grad():
            rows_in, rows_out = input.shape[0], output.shape[0]
            if rows_in == 0:
                output.zero_()
            for start in range(0, rows_out if rows_in else 0, max(rows_in, 1)):
                take = min(rows_in, rows_out - start)
                output[start:start + take].copy_(input[:take])
        return work

    dist.reduce_scatter_tensor = distributed_c10d.reduce_scatter_tensor = reduce_scatter_tensor
    dist.all_to_all_single = distributed_c10d.all_to_all_single = all_to_all_single
