"""Fine-tune a language model whose scores of a large vocabulary are copied to float32 and shifted by a copy.

Reported: https://github.com/radixark/miles/pull/1554, https://github.com/unslothai/unsloth/issues/3700.
"""

import steps
import torch
from torch import nn

DEV = steps.device()
WIDTH, LAYERS, ROWS, LENGTH, WORDS = (32, 2, 2, 8, 128) if steps.SMALL else (512, 4, 4, 1024, 131072)


def build(fixed):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
    embed = nn.Embedding(WORDS, WIDTH).to(DEV, torch.bfloat16)
    body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(DEV, torch.bfloat16)
    head = nn.Linear(WIDTH, WORDS, bias=False).to(DEV, torch.bfloat16)
    parameters = [*body.parameters()]
    optimizer = torch.optim.AdamW(parameters, 1e-5, fused=DEV == "cuda")
    head.requires_grad_(False)
    embed.requires_grad_(False)
    words = torch.randint(0, WORDS, (ROWS, LENGTH), device=DEV)

    def whole(hidden):
        scores = head(hidden).float()
        shifted = scores[:, :-1].contiguous()
        return nn.functional.cross_entropy(shifted.view(-1, WORDS), words[:, 1:].reshape(-1))

    def in_bf16(hidden):
        scores = head(hidden[:, :-1].reshape(-1, WIDTH))
        return nn.functional.cross_entropy(scores, words[:, 1:].reshape(-1))

    def step(i):
        loss = (in_bf16 if fixed else whole)(body(embed(words)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    steps.main(build, 200)
