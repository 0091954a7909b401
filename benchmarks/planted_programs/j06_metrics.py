"""Train a small language model. Cause: a Python thread that works on metrics holds the interpreter."""

import threading
import time

import blocks as loop
import torch
from torch import nn

D, LAYERS, BATCH, TOKENS = 512, 8, 32, 256


def work(active, losses):
    while True:
        active.wait()
        table = {}
        for k in range(30000):
            table[k % 97] = table.get(k % 97, 0.0) * 0.99 + len(losses)
        time.sleep(0.003)


def build():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, 8, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False), nn.Linear(D, 8192)
    ).cuda()
    table = nn.Embedding(8192, D).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *table.parameters()], lr=1e-4, fused=True)
    tokens = torch.randint(0, 8192, (16, BATCH, TOKENS), device="cuda")
    active, losses = threading.Event(), []
    threading.Thread(target=work, args=(active, losses), daemon=True).start()

    def step(cause, i):
        (active.set if cause else active.clear)()
        batch = tokens[i % 16]
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(table(batch)).flatten(0, 1).float(), batch.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 10 == 0:
            losses.append(loss.item())

    return step


if __name__ == "__main__":
    loop.main(build)
