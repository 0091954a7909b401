"""A training whose ranks share the node's GPUs, to be recorded on many ranks.

``hpcprof submit --ranks-per-node 8 --profiler nsys --capture-steps 12-31 -- python
benchmarks/shared_gpus.py``
trains a small transformer with DistributedDataParallel over gloo, since NCCL allows one rank per GPU only;
``time hpcprof collect`` then reads the profiles of all ranks.
"""

from __future__ import annotations

import os

STEPS = 40


def main() -> None:
    """Train one rank."""
    import torch
    import torch.distributed as dist
    from torch import nn

    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    torch.cuda.set_device(rank % torch.cuda.device_count())
    meeting = f"file://{os.environ['HPCPROF_RUN_DIR']}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    model = nn.parallel.DistributedDataParallel(nn.TransformerEncoder(layer, 6).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    data = torch.randn(8, 256, 512, device="cuda")
    for _ in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(float(loss))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
