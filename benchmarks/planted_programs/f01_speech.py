"""Train a recogniser of speech, LSTM and CTC. Cause: spans are masked one by one, for each utterance."""

import blocks as loop
import torch
import torch.nn as nn
import torch.nn.functional as F

H, B, T, M = (16, 4, 64, 24) if loop.SMALL else (768, 48, 1200, 80)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv1d(M, H, 5, 2, 2), nn.Conv1d(H, H, 5, 2, 2)
        self.rnn = nn.LSTM(H, H, 3, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * H, 64)

    def forward(self, x):
        h = F.gelu(self.c2(F.gelu(self.c1(x))))
        h, _ = self.rnn(h.transpose(1, 2))
        return self.out(h)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    net = Recogniser().to(dev)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=dev == "cuda")
    with torch.device(dev):
        spectra = [torch.randn(B, M, T) for _ in range(4)]
        words = torch.randint(1, 64, (B, T // 32))
        frames = torch.full((B,), T // 4)
        letters = torch.full((B,), T // 32)
        steps, bands = torch.arange(T), torch.arange(M)
    draw = torch.Generator().manual_seed(1)

    def spans(length, longest, count):
        first = torch.randint(0, length - longest, (B, count), generator=draw)
        return first, first + torch.randint(1, longest, (B, count), generator=draw)

    def inside(where, low, high):
        low, high = low.to(dev, non_blocking=True), high.to(dev, non_blocking=True)
        return ((where >= low[..., None]) & (where < high[..., None])).any(1)

    def step(cause, i):
        x = spectra[i % 4].clone()
        times, tones = spans(T, T // 12, 5), spans(M, M // 6, 3)
        if cause:
            (t0, t1), (m0, m1) = [[each.tolist() for each in pair] for pair in (times, tones)]
            for b in range(B):
                for k in range(5):
                    x[b, :, t0[b][k] : t1[b][k]] = 0
                for k in range(3):
                    x[b, m0[b][k] : m1[b][k]] = 0
        else:
            x.masked_fill_(inside(steps, *times)[:, None] | inside(bands, *tones)[:, :, None], 0)
        with torch.autocast(dev, dtype=torch.bfloat16):
            y = net(x)
        loss = F.ctc_loss(y.float().log_softmax(-1).transpose(0, 1), words, frames, letters)
        loss.backward()
        opt.step()
        opt.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
