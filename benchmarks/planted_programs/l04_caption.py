"""Train an encoder with a recurrent decoder. Cause: the decoder is unrolled with LSTMCell."""

import blocks as loop
import torch
from torch import nn
from torch.nn import functional as F

DEV = loop.device()
D, B, S, T, V = (32, 2, 8, 5, 50) if loop.SMALL else (512, 256, 160, 40, 8000)


class Caption(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 8, 4 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.words, self.start, self.out = nn.Embedding(V, D), nn.Linear(D, D), nn.Linear(D, V)
        self.cell, self.lstm = nn.LSTMCell(D, D), nn.LSTM(D, D, batch_first=True)

    def forward(self, frames, words, unrolled):
        h = torch.tanh(self.start(self.encoder(frames).mean(1)))
        c, x = torch.zeros_like(h), self.words(words)
        if unrolled:
            outs = []
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
                outs.append(h)
            y = torch.stack(outs, 1)
        else:
            y, _ = self.lstm(x, (h[None], c[None]))
        return self.out(y)


def build():
    torch.manual_seed(0)
    model = Caption().to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    frames = torch.randn(B, S, D, device=DEV)
    words = torch.randint(0, V, (B, T + 1), device=DEV)

    def step(cause, i):
        optimizer.zero_grad()
        with torch.autocast(DEV, torch.bfloat16):
            logits = model(frames, words[:, :-1], cause)
            loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss

    return step


if __name__ == "__main__":
    loop.main(build)
