"""Parallel programs with NCCL, alone and recorded, with causes of lost time on one rank.

``python benchmarks/nccl_programs.py measure FOLDER [KIND…]`` needs two GPUs, hpcprof's command and nsys. For
each kind of program it first runs one job without a profiler, in which blocks of steps without a cause and
with it alternate (A B B A): the step alone, and the cost of the cause. Then it records the program with nsys,
once without a cause and once with each. ``show FOLDER`` prints a table on any machine: the step alone and
recorded, and the findings of ``explain``.

``run KIND`` is the program of one rank: ``ddp``, ``fsdp``, ``tensor`` (two parts of each layer), ``pipeline``
(two stages, four micro-batches) and ``experts`` (all-to-all). The causes: ``slow_host`` (a loader that takes
200 ms on rank 1), ``slow_gpu`` (matrix products more on rank 1), ``recompilation`` (a compiled function that
meets three new shapes in each step, on rank 1), ``unfused_attention`` (on rank 1) and ``imbalance`` (three
quarters of the tokens go to the expert of rank 1). The sizes are such that the GPU limits a step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

KINDS = {
    "ddp": ("slow_host", "recompilation"),
    "fsdp": ("slow_gpu", "unfused_attention"),
    "tensor": ("slow_host",),
    "pipeline": ("slow_gpu",),
    "experts": ("imbalance",),
}
"""The kinds of programs, with the causes that each is measured with."""

WIDTH, LAYERS, HEADS, BATCH, LENGTH, WORDS = 2048, 12, 16, 16, 1024, 8192
MICRO_BATCHES = 4
LOADER_S, PRODUCTS, SHAPES = 0.2, 12, 3
WARM_UP, BLOCK_STEPS, RECORDED = 10, 6, 30
CAPTURE = "12-26"
Step = Callable[[str], None]


def program(kind: str, steps: int, cause: str, blocks: int, folder: Path) -> None:
    """Run one rank: ``steps`` steps with a cause, or blocks in turns with each cause of the kind."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    torch.cuda.set_device(rank)
    meeting = Path(os.environ.get("HPCPROF_RUN_DIR", folder)) / "meeting"
    dist.init_process_group(
        "nccl",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"]),
        device_id=torch.device("cuda", rank),
        timeout=timedelta(seconds=120),
    )
    torch.manual_seed(rank)
    with torch.device("cuda"):
        train = _BUILDERS[kind](rank)
    step = _with_data(kind, rank, train)
    for _ in range(WARM_UP):
        step(cause)
    result: dict[str, Any] = {"kind": kind, "cause": cause, "rank": rank}
    if blocks:
        result["blocks"] = {}
        for planted in KINDS[kind]:
            step(planted)
            order = ("", planted, planted, "") * blocks
            result["blocks"][planted] = [(which, _block(step, which)) for which in order]
    else:
        result["steps_ms"] = _each(step, cause, steps)
    if rank == 0:
        _result(folder, kind, cause, bool(blocks)).write_text(json.dumps(result))
    dist.destroy_process_group()


def _block(step: Step, cause: str) -> float:
    """Return the elapsed milliseconds of a step, over a block on all ranks."""
    import torch
    import torch.distributed as dist

    step(cause)
    dist.barrier()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(BLOCK_STEPS):
        step(cause)
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3 / BLOCK_STEPS


def _each(step: Step, cause: str, steps: int) -> list[float]:
    import torch

    marks = [time.perf_counter()]
    for _ in range(steps):
        step(cause)
        marks.append(time.perf_counter())
    torch.cuda.synchronize()
    marks.append(time.perf_counter())
    return [(after - before) * 1e3 for before, after in pairwise(marks)]


def _with_data(kind: str, rank: int, train: Callable[[Any, bool], None]) -> Step:
    """Return a step: it loads a batch, has the causes that change no model, and trains."""
    import torch

    words = torch.randint(WORDS, (16, BATCH, LENGTH + 1), device="cuda")
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    number = 0

    def step(cause: str) -> None:
        nonlocal number
        number += 1
        if cause == "slow_host" and rank == 1:
            until = time.perf_counter() + LOADER_S
            while time.perf_counter() < until:
                pass
        if cause == "slow_gpu" and rank == 1:
            for _ in range(PRODUCTS):
                torch.mm(square, square)
        if cause == "recompilation" and rank == 1:
            for shape in range(SHAPES):
                _compiled()(number * SHAPES + shape)
        train(
            words[number % len(words)], cause == "imbalance" or (cause == "unfused_attention" and rank == 1)
        )

    return step


@cache
def _compiled() -> Callable[[int], None]:
    """Return a function that is compiled anew for each number."""
    import torch

    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 100_000

    def scale(values: Any) -> Any:
        return torch.nn.functional.gelu(values * 2).sum()

    compiled = torch.compile(scale, backend="aot_eager", dynamic=False)

    def call(number: int) -> None:
        compiled(torch.ones(64 + number, device="cuda"))

    return call


def _layers(count: int, feed_forward: Callable[[], Any] | None = None) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.feed = (
                feed_forward()
                if feed_forward
                else nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            )

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = (
                self.project(self.before(x))
                .view(batch, length, 3, HEADS, WIDTH // HEADS)
                .permute(2, 0, 3, 1, 4)
            )
            query, key, value = parts
            attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
            return x + self.feed(self.between(x))

    return nn.ModuleList([Block() for _ in range(count)]).to(torch.device("cuda"))


def _model(layers: Any) -> Any:
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.layers, self.head = nn.Embedding(WORDS, WIDTH), layers, nn.Linear(WIDTH, WORDS)

        def forward(self, words: Any) -> Any:
            x = self.words(words)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return Model().cuda()


def _attention(unfused: bool) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH) if unfused else nullcontext()


def _training(model: Any) -> Callable[[Any, bool], None]:
    """Return what trains a model on a batch, by automatic mixed precision."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def train(words: Any, unfused: bool) -> None:
        with torch.autocast("cuda", torch.bfloat16), _attention(unfused):
            logits = model(words[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def _ddp(rank: int) -> Callable[[Any, bool], None]:
    from torch.nn.parallel import DistributedDataParallel

    return _training(DistributedDataParallel(_model(_layers(LAYERS)), device_ids=[rank]))


def _fsdp(rank: int) -> Callable[[Any, bool], None]:
    from torch.distributed.fsdp import fully_shard

    model = _model(_layers(LAYERS))
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    return _training(model)


def _tensor(rank: int) -> Callable[[Any, bool], None]:
    """Divide the feed-forward part of each layer by columns and rows; its sums are all-reduced."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = _model(_layers(LAYERS))
    mesh = init_device_mesh("cuda", (2,))
    for layer in model.layers:
        parallelize_module(layer.feed, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    divided = [each for each in model.parameters() if isinstance(each, DTensor)]
    whole = [each for each in model.parameters() if not isinstance(each, DTensor)]
    optimizer = torch.optim.AdamW([{"params": whole, "fused": True}, {"params": divided, "foreach": False}])

    def train(words: Any, unfused: bool) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(words[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def _pipeline(rank: int) -> Callable[[Any, bool], None]:
    """Return a stage of two: all forward passes of the micro-batches, then all backward ones."""
    import torch
    import torch.distributed as dist
    from torch import nn

    layers = _layers(LAYERS // 2)
    edge = (nn.Embedding(WORDS, WIDTH) if rank == 0 else nn.Linear(WIDTH, WORDS)).cuda()
    optimizer = torch.optim.AdamW([*layers.parameters(), *edge.parameters()], fused=True)

    def through(x: Any) -> Any:
        for layer in layers:
            x = layer(x)
        return x

    def train(words: Any, unfused: bool) -> None:
        kept = []
        for part in words.chunk(MICRO_BATCHES):
            with torch.autocast("cuda", torch.bfloat16):
                if rank == 0:
                    out = through(edge(part[:, :-1]))
                    dist.send(out.detach(), 1)
                    kept.append((out, out))
                else:
                    received = torch.empty(len(part), LENGTH, WIDTH, device="cuda")
                    dist.recv(received, 0)
                    received.requires_grad_()
                    logits = edge(through(received))
                    loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), part[:, 1:].flatten())
                    kept.append((loss, received))
        for out, received in kept:
            if rank == 0:
                gradient = torch.empty_like(out)
                dist.recv(gradient, 1)
                out.backward(gradient)
            else:
                out.backward()
                dist.send(received.grad, 0)
        optimizer.step()
        optimizer.zero_grad()

    return train


def _experts(rank: int) -> Callable[[Any, bool], None]:
    """Return a training whose feed-forward parts are two experts, one on each rank."""
    import torch
    from torch import nn
    from torch.distributed.nn.functional import all_to_all_single
    from torch.nn.parallel import DistributedDataParallel

    share = [0.5]

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.expert = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

        def forward(self, x: Any) -> Any:
            tokens = x.flatten(0, 1)
            first = int(len(tokens) * share[0])
            sent = [first, len(tokens) - first]
            received = [sent[rank]] * 2
            there = all_to_all_single(tokens.new_empty(sum(received), WIDTH), tokens, received, sent)
            back = all_to_all_single(
                torch.empty_like(tokens), self.expert(there).to(tokens.dtype), sent, received
            )
            return back.view_as(x)

    model = _model(_layers(LAYERS, Experts))
    expert = [name for name, _ in model.named_parameters() if ".feed." in name]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, expert)
    train = _training(DistributedDataParallel(model, device_ids=[rank]))

    def routed(words: Any, uneven: bool) -> None:
        share[0] = 0.25 if uneven else 0.5
        train(words, False)

    return routed


_BUILDERS = {"ddp": _ddp, "fsdp": _fsdp, "tensor": _tensor, "pipeline": _pipeline, "experts": _experts}


def measure(folder: Path, kinds: list[str]) -> None:
    """Run each kind alone in blocks, then record it without a cause and with each.

    A job begins when the program of the one before has ended, while its profiles may still be exported.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = []
    for kind in kinds or KINDS:
        jobs.append(_submit(folder, f"{kind}-alone", kind, "", alone=True))
        jobs.extend(
            _submit(folder, f"{kind}-{cause or 'clean'}", kind, cause) for cause in ("", *KINDS[kind])
        )
    for name, job in jobs:
        printed = job.communicate(timeout=120)[0]
        print(f"{name}: exit {job.returncode}", printed[-1500:] if job.returncode else "", flush=True)


def _submit(
    folder: Path, name: str, kind: str, cause: str, alone: bool = False
) -> tuple[str, subprocess.Popen[str]]:
    """Start one job, and wait until its program has ended."""
    chosen = ("--blocks", "2") if alone else ("--cause", cause) if cause else ()
    profiler = ("none", "--no-hook") if alone else ("nsys", "--capture-steps", CAPTURE)
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "hpcprof", "submit", "--site", "local"),
            *("--ranks-per-node", "2", "--wait"),
            *("--runs-dir", str(folder / name), "--profiler", *profiler, "--stall-timeout", "60s"),
            *("--on-stall", "stop", "--", sys.executable, __file__, "run", kind, *chosen),
            *("--folder", str(folder.resolve())),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    began, written = time.time(), _result(folder, kind, cause, alone)
    while job.poll() is None and not written.exists() and time.time() < began + 150:
        time.sleep(0.2)
    print(f"{name}: program ended after {time.time() - began:.0f} s", flush=True)
    return name, job


def _result(folder: Path, kind: str, cause: str, alone: bool) -> Path:
    return folder / f"{kind}-{cause or 'clean'}-{'alone' if alone else 'steps'}.json"


def show(folder: Path) -> None:
    """Print what each kind takes alone and recorded, what explain makes of it, and what is found."""
    print(
        f"{'program':26} {'alone ms':>9} {'cost ms':>8} {'recorded':>9} {'explained':>16}  findings (saving)"
    )
    for kind, causes in KINDS.items():
        path = folder / f"{kind}-clean-alone.json"
        if not path.exists():
            continue
        blocks = json.loads(path.read_text())["blocks"]
        clean = [ms for series in blocks.values() for which, ms in series if not which]
        for cause in ("", *causes):
            alone = median([ms for which, ms in blocks[cause] if which] if cause else clean)
            base = median([ms for which, ms in blocks[cause] if not which] if cause else clean)
            recorded, explained, found = _explained(folder / f"{kind}-{cause or 'clean'}")
            error = 100 * (explained / alone - 1)
            times = f"{alone:9.2f} {alone - base:8.2f} {recorded:9.2f} {explained:9.2f} {error:+5.1f}%"
            print(f"{kind + ' ' + cause:26} {times}  {found}")


def _explained(runs: Path) -> tuple[float, float, str]:
    """Return the recorded and the explained step in ms, and the first findings."""
    run = next((path.parent for path in runs.glob("*/run.json")), None)
    if run is None:
        return 0.0, 0.0, "not recorded"
    command = [sys.executable, "-m", "hpcprof", "explain", str(run), "--format", "json"]
    completed = subprocess.run(command, capture_output=True, text=True)
    if completed.returncode:
        return 0.0, 0.0, completed.stderr.strip()[-200:]
    explained = json.loads(completed.stdout)
    step = explained["step"]
    findings = [
        f"{each['cause']} {each['ranks']} {each['where']} {(each['saving_ns'] or 0) / 1e6:.2f} "
        f"({(each['saving_low_ns'] or 0) / 1e6:.2f} to {(each['saving_high_ns'] or 0) / 1e6:.2f})"
        for each in explained["findings"][:2]
    ]
    times = (step["recorded_elapsed_ns"] / 1e6, step["elapsed_ns"] / 1e6)
    return *times, "; ".join(findings) or "none"


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "show", "run"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--cause", default="")
    parser.add_argument("--steps", type=int, default=RECORDED)
    parser.add_argument("--blocks", type=int, default=0)
    given = parser.parse_args()
    if given.what == "run":
        program(given.names[0], given.steps, given.cause, given.blocks, given.folder)
    else:
        folder, *kinds = given.names
        if given.what == "measure":
            measure(Path(folder), kinds)
        else:
            show(Path(folder))


if __name__ == "__main__":
    main()
