"""Embed sentences with an encoder. Cause: another program uses the GPU.

`beside FILE` is that program: it works while FILE exists, which the variable BESIDE names for the encoder.
"""

import os
import sys
from pathlib import Path

import blocks as loop
import torch
from i08_neighbour import beside
from torch import nn

BESIDE = Path(os.environ.get("BESIDE", "/tmp/beside"))


def build():
    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, "gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(**half).eval()
    x = torch.randn(64, 256, 1024, **half)
    on = [None]

    @torch.inference_mode()
    def step(cause, i):
        if cause is not on[0]:
            loop.sync()
            BESIDE.touch() if cause else BESIDE.unlink(missing_ok=True)
            on[0] = cause
        model(x).float().mean().item()

    return step


if __name__ == "__main__":
    if sys.argv[1] == "beside":
        beside(Path(sys.argv[2]))
    else:
        loop.main(build)
        BESIDE.unlink(missing_ok=True)
