"""The time that Nsight Systems adds to a step, by option, by call and by program.

``python benchmarks/profiler_cost.py measure FOLDER`` needs a GPU, nvcc, nsys and hpcprof's command and takes
eight minutes. It measures

- a launch-bound training under nsys with other options, in turns and then in reverse;
- single calls of CUDA and NVTX in a loop, with and without nsys (``probe.cu``, which it compiles);
- programs of eight kinds: alone, with the start-up hook only, recorded as a whole, recorded from step 10 on,
  and alone again.

``show FOLDER`` prints the figures, on any machine. ``run KIND FILE`` is one program, which writes the times
of its steps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

STEPS, WARM_UP = 120, 10
WINDOW = (10, 29)
BASE = ("--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=graph")
OPTIONS: dict[str, tuple[str, ...] | None] = {
    "alone": None,
    "cuda,nvtx,mpi": ("--trace=cuda,nvtx,mpi", *BASE),
    "no events": ("--trace=cuda,nvtx,mpi", "--cuda-event-trace=false", *BASE),
    "no NVTX": ("--trace=cuda", *BASE),
    "with osrt": ("--trace=cuda,nvtx,mpi,osrt", *BASE),
    "flush 10 s": ("--trace=cuda,nvtx,mpi", "--cuda-flush-interval=10000", *BASE),
    "injected only": ("--trace=cuda,nvtx,mpi", "--capture-range=cudaProfilerApi", *BASE),
    "no CUDA": ("--trace=nvtx,mpi", *BASE[:2]),
}
"""The options of nsys that are compared; None is the program without nsys."""

TRAINED = ("transformer", "convolution", "recurrent", "loop_optimizer", "graph")
KINDS = (*TRAINED, "decode", "decode_graph", "solver")
WAYS: dict[str, tuple[str, ...]] = {
    "alone": ("--profiler", "none", "--no-hook"),
    "hook": ("--profiler", "none"),
    "whole": ("--profiler", "nsys"),
    "window": ("--profiler", "nsys", "--capture-steps", f"{WINDOW[0]}-{WINDOW[1]}"),
    "again": ("--profiler", "none", "--no-hook"),
}

PROBE = r"""
#include <cstdio>
#include <chrono>
#include <algorithm>
#include <vector>
#include <utility>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define NVTX 1
#endif
__global__ void empty(int) {}
template <class F> void timed(const char *name, int each, F call) {
    std::vector<double> ns;
    for (int round = 0; round < 60; ++round) {
        cudaDeviceSynchronize();
        auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < each; ++i) call();
        auto ended = std::chrono::steady_clock::now();
        ns.push_back(std::chrono::duration<double, std::nano>(ended - began).count() / each);
    }
    std::sort(ns.begin() + 10, ns.end());
    printf("{\"call\": \"%s\", \"ns\": %.0f, \"low\": %.0f, \"high\": %.0f}\n", name, ns[35], ns[15], ns[54]);
}
int main() {
    cudaStream_t stream; cudaStreamCreate(&stream);
    cudaEvent_t event; cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    char *gpu, *pinned, pageable[64]; cudaMalloc(&gpu, 1 << 20); cudaMallocHost(&pinned, 64);
    cudaGraph_t graph; cudaGraphExec_t ready;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < 20; ++i) empty<<<1, 32, 0, stream>>>(i);
    cudaStreamEndCapture(stream, &graph); cudaGraphInstantiate(&ready, graph, 0);
    timed("cudaLaunchKernel", 200, [&] { empty<<<1, 32, 0, stream>>>(1); });
    timed("cudaMemcpyAsync", 200, [&] { cudaMemcpyAsync(gpu, pinned, 64, cudaMemcpyHostToDevice, stream); });
    timed("cudaMemcpyAsync device", 200,
          [&] { cudaMemcpyAsync(gpu, gpu + 4096, 64, cudaMemcpyDeviceToDevice, stream); });
    timed("cudaMemcpy", 50, [&] { cudaMemcpy(pageable, gpu, 4, cudaMemcpyDeviceToHost); });
    timed("cudaMemsetAsync", 200, [&] { cudaMemsetAsync(gpu, 0, 64, stream); });
    timed("cudaEventRecord", 200, [&] { cudaEventRecord(event, stream); });
    timed("cudaStreamWaitEvent", 200, [&] { cudaStreamWaitEvent(stream, event, 0); });
    timed("cudaEventQuery", 200, [&] { cudaEventQuery(event); });
    timed("cudaStreamSynchronize", 200, [&] { cudaStreamSynchronize(stream); });
    timed("cudaDeviceSynchronize", 200, [&] { cudaDeviceSynchronize(); });
    timed("cudaGraphLaunch", 50, [&] { cudaGraphLaunch(ready, stream); });
    timed("cudaMalloc", 20, [&] { void *more; cudaMalloc(&more, 1 << 21); cudaFree(more); });
    timed("cudaGetLastError", 200, [&] { cudaGetLastError(); });
#ifdef NVTX
    timed("nvtxRangePush", 200, [&] { nvtxRangePushA("range"); nvtxRangePop(); });
#endif
    timed("launch and synchronize", 50,
          [&] { empty<<<1, 32, 0, stream>>>(1); cudaStreamSynchronize(stream); });
}
"""
SOLVER = r"""
#include <cstdio>
#include <chrono>
#include <utility>
#include <vector>
__global__ void sweep(const float *from, float *to, int n) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x > 0 && y > 0 && x < n - 1 && y < n - 1)
        to[y * n + x] = 0.25f * (from[y * n + x - 1] + from[y * n + x + 1]
                                 + from[(y - 1) * n + x] + from[(y + 1) * n + x]);
}
__global__ void residual(const float *from, const float *to, float *sum, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * n) atomicAdd(sum, (to[i] - from[i]) * (to[i] - from[i]));
}
int main(int, char **argv) {
    const int n = 1024; float *a, *b, *sum, here;
    cudaMalloc(&a, 4 * n * n); cudaMalloc(&b, 4 * n * n); cudaMalloc(&sum, 4);
    cudaMemset(a, 1, 4 * n * n); cudaMemset(b, 0, 4 * n * n);
    std::vector<double> ms; auto last = std::chrono::steady_clock::now();
    for (int step = 0; step < 1200; ++step) {
        for (int i = 0; i < 20; ++i) {
            sweep<<<dim3(n / 128, n), 128>>>(a, b, n);
            std::swap(a, b);
        }
        cudaMemsetAsync(sum, 0, 4);
        residual<<<n * n / 256, 256>>>(a, b, sum, n);
        cudaMemcpy(&here, sum, 4, cudaMemcpyDeviceToHost);
        auto now = std::chrono::steady_clock::now();
        ms.push_back(std::chrono::duration<double, std::milli>(now - last).count()); last = now;
    }
    FILE *file = fopen(argv[1], "w"); fprintf(file, "[");
    for (size_t i = 0; i < ms.size(); ++i) fprintf(file, "%s%.5f", i ? ", " : "", ms[i]);
    fprintf(file, "]"); fclose(file);
}
"""


def run(kind: str, path: Path) -> None:
    """Run a program of PyTorch, and write the milliseconds of each step."""
    import torch

    torch.manual_seed(0)
    step = _trained(kind) if kind in TRAINED else _decoded(kind == "decode_graph")
    for _ in range(0 if kind in TRAINED else WARM_UP):
        step()
    marks = [time.perf_counter()]
    for _ in range(STEPS if kind in TRAINED else 4 * STEPS):
        step()
        marks.append(time.perf_counter())
    torch.cuda.synchronize()
    marks[-1] = time.perf_counter()
    path.write_text(json.dumps([round((after - before) * 1e3, 4) for before, after in pairwise(marks)]))


def _trained(kind: str) -> Callable[[], None]:
    import torch
    from torch import nn

    model: Any
    fused = kind != "loop_optimizer"
    if kind == "transformer":
        layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
        model, data = nn.TransformerEncoder(layer, 8), torch.randn(16, 256, 512, device="cuda")
    elif kind == "convolution":
        blocks = [
            nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(24)
        ]
        model, data = nn.Sequential(*blocks), torch.randn(32, 64, 56, 56, device="cuda")
    elif kind == "recurrent":
        cells = nn.ModuleList([nn.LSTMCell(512, 512) for _ in range(2)])

        class Recurrent(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cells = cells

            def forward(self, x: Any) -> Any:
                states: list[Any] = [None, None]
                for moment in x:
                    for i, cell in enumerate(self.cells):
                        states[i] = cell(moment, states[i])
                        moment = states[i][0]
                return moment

        model, data = Recurrent(), torch.randn(24, 64, 512, device="cuda")
    elif kind == "loop_optimizer":
        model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(32)))
        data = torch.randn(256, 1024, device="cuda")
    else:
        edges = torch.randint(20_000, (2, 200_000), device="cuda")

        class Messages(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleList([nn.Linear(128, 128) for _ in range(6)])

            def forward(self, x: Any) -> Any:
                for part in self.parts:
                    sent = part(x)[edges[0]]
                    weight = torch.sigmoid((sent * x[edges[1]]).sum(1, keepdim=True))
                    x = torch.relu(
                        x + torch.zeros_like(x).index_add_(0, edges[1], (sent * weight).to(x.dtype))
                    )
                return x

        model, data = Messages(), torch.randn(20_000, 128, device="cuda")
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused or None, foreach=None if fused else False)
    autocasts = kind == "transformer"

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocasts):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _decoded(as_graph: bool) -> Callable[[], None]:
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 8).cuda().bfloat16().eval()
    head = nn.Linear(512, 8192, device="cuda", dtype=torch.bfloat16)
    words = torch.randn(8192, 512, device="cuda", dtype=torch.bfloat16)
    token = torch.zeros(8, 1, dtype=torch.long, device="cuda")

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def step() -> None:
        token.copy_(head(model(words[token])).argmax(-1))

    if not as_graph:
        return step
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()
        token.cpu()

    return replay


def measure(folder: Path) -> None:
    """Measure everything, the programs first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in (("probe", PROBE), ("solver", SOLVER)):
        (folder / f"{name}.cu").write_text(source)
        subprocess.run(
            ["nvcc", "-O2", "-arch=sm_90", "-o", folder / name, folder / f"{name}.cu"], check=False
        )
    jobs = []
    for kind in KINDS:
        for way in WAYS:
            if kind in TRAINED or way not in ("hook", "window"):
                jobs.append(_submit(folder, kind, way))
        print(f"{kind} ended", flush=True)
    for job in jobs:
        printed = job.communicate(timeout=60)[0]
        if job.returncode:
            print(printed[-800:], flush=True)
    for turn, names in enumerate((list(OPTIONS), list(reversed(OPTIONS)))):
        for name in names:
            place = f"{name.replace(' ', '_')}-{turn}"
            if not turn:
                lines = _under(OPTIONS[name], [str(folder / "probe")], folder / f"probe-{place}")
                (folder / f"probe-{place}.jsonl").write_text(lines)
            program = [sys.executable, __file__, "run", "transformer", str(folder / f"options-{place}.json")]
            _under(OPTIONS[name], program, folder / f"options-{place}")
        print(f"options: turn {turn} ended", flush=True)


def _under(options: tuple[str, ...] | None, program: list[str], report: Path) -> str:
    nsys = (
        []
        if options is None
        else ["nsys", "profile", *options, "--force-overwrite=true", f"--output={report}"]
    )
    completed = subprocess.run([*nsys, *program], capture_output=True, text=True, timeout=60)
    if completed.returncode:
        print((completed.stdout + completed.stderr)[-500:], flush=True)
    for file in report.parent.glob(f"{report.name}.nsys-rep"):
        file.unlink()
    return "".join(line for line in completed.stdout.splitlines(True) if line.startswith('{"call"'))


def _submit(folder: Path, kind: str, way: str) -> subprocess.Popen[str]:
    """Start a job, and wait until its program has ended; its profile may still be exported."""
    written = folder / f"{kind}-{way}.json"
    program = (
        (str(folder / "solver"), str(written))
        if kind == "solver"
        else (sys.executable, __file__, "run", kind, str(written))
    )
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "hpcprof", "submit", "--site", "local"),
            *("--ranks-per-node", "1", "--wait"),
            *(
                "--runs-dir",
                str(folder / f"{kind}-{way}"),
                *WAYS[way],
                "--stall-timeout",
                "off",
                "--",
                *program,
            ),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "CUDA_MODULE_LOADING": "LAZY"},
    )
    began = time.time()
    while job.poll() is None and not written.exists() and time.time() < began + 60:
        time.sleep(0.1)
    time.sleep(0.3)
    return job


def show(folder: Path) -> None:
    """Print the tables."""
    print("a step of the transformer, ms, both turns")
    for name in OPTIONS:
        paths = [folder / f"options-{name.replace(' ', '_')}-{turn}.json" for turn in (0, 1)]
        print(f"  {name:16}", *(f"{_level(path):8.3f}" for path in paths if path.exists()))
    print("ns of a call")
    calls: dict[str, list[str]] = {}
    for name in OPTIONS:
        for turn in (0, 1):
            path = folder / f"probe-{name.replace(' ', '_')}-{turn}.jsonl"
            for line in path.read_text().splitlines() if path.exists() else ():
                figure = json.loads(line)
                calls.setdefault(figure["call"], []).append(f"{figure['ns']:7.0f}")
    print(f"  {'':24}", " ".join(f"{name[:15]:>15}" for name in OPTIONS))
    for call, figures in calls.items():
        print(f"  {call:24}", " ".join(figures))
    print("a step of each program, ms; of the window the steps before it, in it and 1 s after it")
    for kind in KINDS:
        known = {way: folder / f"{kind}-{way}.json" for way in WAYS}
        figures = [
            f"{way} {_level(path):.3f}" for way, path in known.items() if path.exists() and way != "window"
        ]
        if known["window"].exists():
            figures.append("window " + " ".join(f"{value:.3f}" for value in _window(known["window"])))
        print(f"  {kind:16}", ", ".join(figures))


def _level(path: Path) -> float:
    steps: list[float] = json.loads(path.read_text())
    return sum(steps[WARM_UP + 20 :]) / len(steps[WARM_UP + 20 :])


def _window(path: Path) -> tuple[float, float, float]:
    steps = json.loads(path.read_text())
    first, last = WINDOW
    after, late = steps[last + 2 :], 0.0
    while after and late < 1000:
        late += after.pop(0)
    inside = steps[first + 1 : last]
    return median(steps[4 : first - 1]), sum(inside) / len(inside), sum(after) / len(after) if after else 0.0


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2], Path(sys.argv[3]))
    elif sys.argv[1] == "measure":
        measure(Path(sys.argv[2]))
    else:
        show(Path(sys.argv[2]))
