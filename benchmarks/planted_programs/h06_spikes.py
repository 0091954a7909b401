"""Train a network of spiking neurons. Cause: 50 instants are launched kernel by kernel, not as a graph."""

import blocks as loop
import torch

D, H, B, T = (8, 16, 4, 3) if loop.SMALL else (256, 1024, 256, 50)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    w1, w2 = torch.randn(D, H, device=dev) / D**0.5, torch.randn(H, H, device=dev) / H**0.5
    out = torch.randn(H, 20, device=dev) / H**0.5
    x = (torch.rand(T, B, D, device=dev) < 0.2).float()
    total = torch.zeros(B, 20, device=dev)

    def all_instants():
        u = torch.zeros(B, H, device=dev)
        s = torch.zeros(B, H, device=dev)
        sums = torch.zeros(B, 20, device=dev)
        for t in range(T):
            u = 0.9 * u + x[t] @ w1 + 0.1 * s @ w2
            s = (u > 1).float()
            u = u - s
            sums = sums + s @ out
        total.copy_(sums)

    graph = None
    if dev == "cuda":
        all_instants()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            all_instants()

    @torch.inference_mode()
    def step(cause, i):
        x.roll(1, 0)
        if cause or not graph:
            all_instants()
        else:
            graph.replay()
        if i % 10 == 0:
            total.sum().item()

    return step


if __name__ == "__main__":
    loop.main(build)
