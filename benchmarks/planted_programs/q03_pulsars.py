"""Search pulses of pulsars in Numba.

Cause: the grid has one block per dispersion, 32 blocks for 132 multiprocessors.

Threads of a block run through all times of one dispersion, so that most of the GPU is idle while the
kernel runs ("Grid size 32 will likely result in GPU under-utilization due to low occupancy"). Mended by
32 times as many blocks, which share the times; the kernel is the same. Reported:
https://github.com/thepetabyteproject/your/issues/106,
https://github.com/Maghoumi/pytorch-softdtw-cuda/issues/21.
"""

import math

import numpy as np

if not hasattr(np, "row_stack"):  # that an earlier Numba asks of NumPy 2.5
    np.row_stack = np.vstack
import steps
from numba import cuda

BEAMS, CHANNELS, TIMES, TRIALS, THREADS = (2, 8, 64, 4, 8) if steps.SMALL else (4, 256, 16384, 32, 256)


@cuda.jit
def whiten(raw, mean, scale, clean):
    """Bytes to numbers around zero, each channel on its own."""
    t, c = cuda.grid(2)
    if t < raw.shape[1] and c < raw.shape[0]:
        clean[c, t] = (np.float32(raw[c, t]) - mean[c]) * scale[c]


@cuda.jit
def dedisperse(clean, delays, series):
    """Sum all channels, each by its delay, for one dispersion and many times."""
    trial = cuda.blockIdx.x
    first = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    times = series.shape[1]
    for t in range(first, times, cuda.gridDim.y * cuda.blockDim.x):
        total = np.float32(0)
        for c in range(clean.shape[0]):
            total += clean[c, t + delays[trial, c]]
        series[trial, t] = total


@cuda.jit
def boxcars(series, best):
    """The best of five widths of a pulse at each time."""
    t, trial = cuda.grid(2)
    if t < series.shape[1] and trial < series.shape[0]:
        total = np.float32(0)
        top = np.float32(0)
        for k in range(16):
            if t + k < series.shape[1]:
                total += series[trial, t + k]
            if k == 0 or k == 1 or k == 3 or k == 7 or k == 15:
                top = max(top, total / math.sqrt(np.float32(k + 1)))
        best[trial, t] = top


def build(fixed):
    rng = np.random.default_rng(0)
    delay = np.linspace(0, 1, TRIALS)[:, None] * np.linspace(0, TIMES // 4, CHANNELS)[None]
    delays = cuda.to_device(delay.astype(np.int32))
    raw = [
        cuda.to_device(rng.integers(0, 255, (CHANNELS, TIMES + TIMES // 4 + 1), dtype=np.uint8))
        for _ in range(BEAMS)
    ]
    mean = cuda.to_device(np.full(CHANNELS, 127, np.float32))
    scale = cuda.to_device(np.full(CHANNELS, 1 / 74, np.float32))
    clean = cuda.device_array((CHANNELS, TIMES + TIMES // 4 + 1), np.float32)
    series = cuda.device_array((TRIALS, TIMES), np.float32)
    best = [cuda.device_array((TRIALS, TIMES), np.float32) for _ in range(BEAMS)]
    shares = min(32, TIMES // THREADS) if fixed else 1
    across = clean.shape[1] // THREADS + 1

    def step(i):
        """Four blocks of time of each of the beams."""
        for _ in range(1 if steps.SMALL else 4):
            for b in range(BEAMS):
                whiten[(across, CHANNELS), (THREADS, 1)](raw[b], mean, scale, clean)
                dedisperse[(TRIALS, shares), THREADS](clean, delays, series)
                boxcars[(TIMES // THREADS, TRIALS), (THREADS, 1)](series, best[b])

    build.best = best
    return step


if __name__ == "__main__":
    steps.main(build, 200, finish=cuda.synchronize)
