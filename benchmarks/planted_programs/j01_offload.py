"""Fine-tune an encoder. Cause: the optimizer and its state are on the host."""

import blocks as loop
import torch
from torch import nn

D, LAYERS, BATCH, TOKENS = (64, 2, 2, 32) if loop.SMALL else (1024, 6, 16, 512)


def build():
    torch.manual_seed(0)
    device = loop.device()
    layer = nn.TransformerEncoderLayer(D, 16, 4 * D, 0.0, "gelu", batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(device)
    weights = list(model.parameters())
    on_gpu = torch.optim.AdamW(weights, lr=1e-5, fused=device == "cuda")
    masters = [torch.nn.Parameter(w.detach().cpu()) for w in weights]
    gradients = [torch.zeros_like(w, pin_memory=device == "cuda") for w in masters]
    for master, gradient in zip(masters, gradients, strict=True):
        master.grad = gradient
    on_host = torch.optim.AdamW(masters, lr=1e-5, fused=True)
    x = torch.randn(BATCH, TOKENS, D, device=device)

    def step(cause, i):
        with torch.autocast(device, torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        if cause:
            for w, gradient in zip(weights, gradients, strict=True):
                gradient.copy_(w.grad, non_blocking=True)
            loop.sync()
            on_host.step()
            with torch.no_grad():
                for w, master in zip(weights, masters, strict=True):
                    w.copy_(master)
        else:
            on_gpu.step()
        on_gpu.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
