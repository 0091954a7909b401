"""Particles in Numba. Cause: kernels get NumPy arrays, which are copied there and back."""

import warnings

warnings.filterwarnings("ignore")
import numpy as np

if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack
import blocks as loop
from numba import cuda

N = 1000 if loop.SMALL else 1_000_000


@cuda.jit
def push(x, v, dt):
    i = cuda.grid(1)
    if i < x.shape[0]:
        a = np.float32(0)
        p = x[i]
        for k in range(200):
            a -= p * np.float32(0.001) / (np.float32(1) + p * p + np.float32(k))
        v[i] += a * dt
        x[i] = p + v[i] * dt


@cuda.jit
def wrap(x, e):
    i = cuda.grid(1)
    if i < x.shape[0]:
        p = x[i]
        for k in range(100):
            p = p - np.float32(0.0001) * p
        x[i] = p
        e[i] = p * p


def build():
    host = [np.random.default_rng(0).standard_normal(N).astype(np.float32) for _ in range(3)]
    there = [cuda.to_device(h) for h in host]
    blocks = (N + 255) // 256

    def step(cause, i):
        x, v, e = host if cause else there
        push[blocks, 256](x, v, np.float32(0.01))
        wrap[blocks, 256](x, e)

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: cuda.synchronize())
