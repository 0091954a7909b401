"""Classify scans of notes. Clean: pictures come two batches ahead, on a stream of their own."""

import blocks as loop
import torch
from torch import nn

DEV = loop.device()
B, S, D = (2, 32, 32) if loop.SMALL else (64, 512, 768)


def build():
    torch.manual_seed(0)
    options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(D, 2 if loop.SMALL else 12, 4 * D, **options)
    body = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    model = nn.Sequential(nn.Conv2d(3, D, 16, 16), nn.Flatten(2))
    model, body = model.to(DEV, torch.bfloat16), body.to(DEV, torch.bfloat16)
    head = nn.Linear(D, 100).to(DEV, torch.bfloat16)
    weights = [*model.parameters(), *body.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, 1e-4, fused=True)
    scans = [torch.rand(B, 3, S, S).bfloat16() for _ in range(4)]
    labels = torch.randint(0, 100, (B,), device=DEV)
    copies, ahead = None, []
    if DEV == "cuda":
        scans, copies = [each.pin_memory() for each in scans], torch.cuda.Stream()

    def fetch(i):
        with torch.cuda.stream(copies):
            scan = scans[i % 4].to(DEV, non_blocking=True)
            ready = None if copies is None else copies.record_event()
        return scan, ready

    def step(cause, i):
        while len(ahead) < 3:
            ahead.append(fetch(i + len(ahead)))
        scan, ready = ahead.pop(0)
        if ready is not None:
            torch.cuda.current_stream().wait_event(ready)
            scan.record_stream(torch.cuda.current_stream())
        logits = head(body(model(scan).transpose(1, 2)).mean(1))
        loss = nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
