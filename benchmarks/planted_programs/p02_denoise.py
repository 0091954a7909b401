"""Train a network that takes noise out of speech, batches from DataLoader workers. Clean: nothing is planted.

Eight workers mix speech with noise ahead of the training, batches are pinned and copied without a wait, the
network runs in bfloat16, the loss compares spectra on the GPU, and the optimizer is fused. ``--fixed`` is the
same program. Advice that it follows: https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html.
"""

import numpy as np
import steps
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEV = steps.device()
BATCH, LENGTH, WIDTH, WORKERS = (2, 2048, 8, 0) if steps.SMALL else (48, 32768, 96, 8)


class Mixtures(Dataset):
    """Clean speech with noise added at a random loudness."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.speech = rng.standard_normal((64, LENGTH), dtype=np.float32)
        self.noise = rng.standard_normal((64, LENGTH), dtype=np.float32)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        speech, noise = self.speech[i % 64], self.noise[i // 64 % 64]
        return speech + (0.1 + i % 7 * 0.1) * noise, speech


class Denoiser(nn.Module):
    """A U-Net over the samples of a sound."""

    def __init__(self, depth=4):
        super().__init__()
        widths = [1] + [WIDTH << k for k in range(depth)]
        self.down = nn.ModuleList(nn.Conv1d(a, b, 8, 4, 2) for a, b in zip(widths, widths[1:], strict=False))
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(b, a, 8, 4, 2) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.mix = nn.ModuleList(nn.Conv1d(b, b, 9, 1, 4) for b in widths[1:])

    def forward(self, x):
        kept = []
        for down, mix in zip(self.down, self.mix, strict=True):
            x = mix(nn.functional.gelu(down(x)))
            kept.append(x)
        for k in reversed(range(len(self.up))):
            x = self.up[k](nn.functional.gelu(x + kept[k] if k + 1 < len(kept) else x))
        return x


def spectra(sound, size):
    window = torch.hann_window(size, device=sound.device)
    return torch.stft(sound, size, size // 4, window=window, return_complex=True).abs()


def build(fixed):
    torch.manual_seed(0)
    model = Denoiser().to(DEV)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=DEV == "cuda")
    pinned = {"num_workers": WORKERS, "pin_memory": DEV == "cuda", "persistent_workers": WORKERS > 0}
    batches = iter(DataLoader(Mixtures(), BATCH, shuffle=False, **pinned))

    def step(i):
        noisy, speech = (each.to(DEV, non_blocking=True) for each in next(batches))
        with torch.autocast(DEV, torch.bfloat16):
            guess = model(noisy[:, None])[:, 0]
        guess = guess.float()
        loss = nn.functional.l1_loss(guess, speech)
        for size in (512, 1024):
            loss = loss + nn.functional.l1_loss(spectra(guess, size), spectra(speech, size))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    steps.main(build, 200)
