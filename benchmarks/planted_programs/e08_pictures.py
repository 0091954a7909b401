"""Vision transformer that prefetches pictures on a stream of its own. Nothing is planted."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

B, S, D, L, H = (2, 32, 32, 2, 4) if loop.SMALL else (256, 224, 768, 12, 12)


def build():
    dev = loop.device()
    cuda = dev == "cuda"
    torch.manual_seed(0)
    n = (S // 16) ** 2
    patch = nn.Conv2d(3, D, 16, 16).to(dev, torch.bfloat16)
    body = nn.ModuleList(
        nn.ModuleDict(
            {
                "n1": nn.LayerNorm(D),
                "qkv": nn.Linear(D, 3 * D),
                "out": nn.Linear(D, D),
                "n2": nn.LayerNorm(D),
                "up": nn.Linear(D, 4 * D),
                "down": nn.Linear(4 * D, D),
            }
        )
        for _ in range(L)
    ).to(dev, torch.bfloat16)
    head = nn.Linear(D, 1000).to(dev, torch.bfloat16)
    host = [torch.randint(0, 256, (B, 3, S, S), dtype=torch.uint8) for _ in range(3)]
    results = [torch.zeros(B, dtype=torch.long) for _ in range(2)]
    if cuda:
        host, results = [h.pin_memory() for h in host], [r.pin_memory() for r in results]
        side = torch.cuda.Stream()
        events = [torch.cuda.Event() for _ in range(2)]
    state = {"next": host[0].to(dev)}

    @torch.no_grad()
    def step(cause, i):
        x = state["next"]
        if cuda:
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.stream(side):
                state["next"] = host[(i + 1) % 3].to(dev, non_blocking=True)
            x.record_stream(torch.cuda.current_stream())
        else:
            state["next"] = host[(i + 1) % 3]
        h = patch(x.to(torch.bfloat16) / 255).flatten(2).transpose(1, 2).contiguous()
        for m in body:
            q, k, v = m["qkv"](m["n1"](h)).view(B, n, 3, H, D // H).permute(2, 0, 3, 1, 4)
            h = h + m["out"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, n, D))
            h = h + m["down"](F.gelu(m["up"](m["n2"](h))))
        best = head(h.mean(1)).argmax(-1)
        results[i % 2].copy_(best, non_blocking=True)
        if cuda:
            events[i % 2].record()
            if i:
                events[(i + 1) % 2].synchronize()

    return step


if __name__ == "__main__":
    loop.main(build)
