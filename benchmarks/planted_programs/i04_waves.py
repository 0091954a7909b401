"""Waves in a plane, CuPy. Cause: the time step is in the source of the kernel, which is compiled anew."""

import blocks as loop
import cupy as cp

N, SWEEPS = (64, 4) if loop.SMALL else (8192, 60)
SOURCE = r"""
extern "C" __global__ void wave(const float *now, const float *before, float *next, float given) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x == 0 || y == 0 || x >= %(n)d - 1 || y >= %(n)d - 1) return;
    size_t i = (size_t)y * %(n)d + x;
    float c = now[i], dt = %(dt)s;
    float around = now[i - 1] + now[i + 1] + now[i - %(n)d] + now[i + %(n)d];
    next[i] = 2 * c - before[i] + dt * dt * (around - 4 * c);
}
"""


def build():
    fields = [cp.random.default_rng(k).standard_normal((N, N), dtype=cp.float32) for k in range(3)]
    general = cp.RawKernel(SOURCE % {"n": N, "dt": "given"}, "wave")
    grid = ((N + 255) // 256, N)

    def step(cause, i):
        dt = 0.4 + 1e-6 * i
        kernel = cp.RawKernel(SOURCE % {"n": N, "dt": f"{dt}f"}, "wave") if cause else general
        for _ in range(SWEEPS):
            now, before, after = fields
            kernel(grid, (256,), (now, before, after, cp.float32(dt)))
            fields[:] = after, now, before

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: cp.cuda.Device().synchronize())
