"""Fine-tune a causal language model on a text, with one process per GPU, or on CPUs, under torchrun."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

_BYTES = 256


def main() -> None:
    """Train the model, and print the loss of every tenth step on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).with_name("data.txt"))
    parser.add_argument("--model", type=Path, help="folder of a pretrained model (default: a new one)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="tokens per sample")
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(dist.get_rank())

    text = torch.tensor(list(options.data.read_bytes()))
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model, local_files_only=True)
    else:
        config = GPT2Config(
            vocab_size=_BYTES, n_layer=4, n_head=4, n_embd=128, bos_token_id=0, eos_token_id=0
        )
        model = GPT2LMHeadModel(config)
    ddp = DistributedDataParallel(model.to(device), device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-4)
    for step in range(options.steps):
        starts = torch.randint(0, len(text) - options.length, (options.batch_size,)).tolist()
        tokens = torch.stack([text[start : start + options.length] for start in starts]).to(device)
        loss = ddp(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
