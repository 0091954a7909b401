"""Train a recurrent language model. Cause: a checkpoint is written in every tenth step."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

V, D, B, T = (50, 16, 2, 8) if loop.SMALL else (4_000, 512, 64, 128)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    emb, rnn, out = (
        nn.Embedding(V, D).to(dev),
        nn.LSTM(D, D, 2, batch_first=True).to(dev),
        nn.Linear(D, V).to(dev),
    )
    parts = nn.ModuleList((emb, rnn, out))
    with torch.device(dev):
        data = torch.randint(0, V, (4, B, T + 1))
    opt = torch.optim.Adam(parts.parameters(), 1e-3, fused=dev == "cuda")

    def step(cause, i):
        x = data[i % 4]
        with torch.autocast(dev, dtype=torch.bfloat16):
            logits = out(rnn(emb(x[:, :-1]))[0])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        if cause and i % 10 == 9:
            torch.save({"model": parts.state_dict(), "optimizer": opt.state_dict()}, "/tmp/checkpoint.pt")

    return step


if __name__ == "__main__":
    loop.main(build)
