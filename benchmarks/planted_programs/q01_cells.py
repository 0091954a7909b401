"""Assign molecules of a tissue to its cells, part by part. Cause: ``gc.collect()`` after each part.

The annotations of the tissue are a quarter of a million Python objects, and the collector visits all of
them after each part of the prediction, to free memory that reference counts have freed already. Mended by
leaving the call out. Reported: https://github.com/dpeerlab/segger/issues/46 (83 s to 1.4 s without it),
https://github.com/google/tunix/pull/2086.
"""

import gc

import steps
import torch
from torch import nn

DEV = steps.device()
NOTES, PART, CELLS, WIDTH, DEPTH, GENES = (
    (200, 64, 32, 16, 1, 20) if steps.SMALL else (60_000, 32768, 8192, 512, 4, 500)
)


class Tower(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.into = nn.Linear(inputs, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
            )
            for _ in range(DEPTH)
        )

    def forward(self, x):
        x = self.into(x)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.normalize(x, dim=-1)


def annotations():
    """Known facts of each cell: name, outline, genes seen; filled in by the prediction."""
    return [
        {"name": f"cell {i}", "outline": [[i % 640, i // 640]], "genes": [i % GENES], "count": 0}
        for i in range(NOTES)
    ]


def build(fixed):
    torch.manual_seed(0)
    cells = annotations()
    molecules, nuclei = (
        Tower(n).to(DEV, torch.bfloat16 if DEV == "cuda" else torch.float32).eval() for n in (GENES + 2, 64)
    )
    kind = next(molecules.parameters()).dtype
    parts = [torch.randn(PART, GENES + 2, device=DEV, dtype=kind) for _ in range(4)]
    outlines = torch.randn(CELLS, 64, device=DEV, dtype=kind)

    @torch.inference_mode()
    def step(i):
        """One part of the tissue: the two most similar cells of each molecule."""
        likeness = molecules(parts[i % 4]) @ nuclei(outlines).T
        best = likeness.topk(2, -1)
        counts = torch.bincount(best.indices[:, 0], minlength=CELLS)
        sure = (best.values[:, 0] - best.values[:, 1]).float().mean()
        written = torch.cat([counts.float(), sure[None]]).cpu().numpy()
        for cell in written[:-1].argsort()[-100:]:
            cells[cell]["count"] += int(written[cell])
        del likeness, best, counts, written
        if not fixed:
            gc.collect()

    return step


if __name__ == "__main__":
    steps.main(build, 175)
