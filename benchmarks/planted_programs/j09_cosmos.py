"""Gravity of galaxies on a mesh, CuPy. Without a cause."""

import blocks as loop
import cupy as cp

N = 32 if loop.SMALL else 512
force = cp.ElementwiseKernel("complex64 d, float32 g", "complex64 f", "f = d * g", "force")
drift = cp.ElementwiseKernel("T d, T p, T dt", "T y", "y = d + dt * (p - d)", "drift")


def build():
    mesh = cp.random.RandomState(0).standard_normal((N, N, N), dtype=cp.float32)
    k = cp.fft.fftfreq(N).astype(cp.float32) ** 2
    half = cp.fft.rfftfreq(N).astype(cp.float32) ** 2
    green = -1 / (k[:, None, None] + k[None, :, None] + half[None, None, :] + cp.float32(1e-3))
    fields = [mesh]

    def step(cause, i):
        for _ in range(4):
            potential = cp.fft.irfftn(force(cp.fft.rfftn(fields[0]), green), (N, N, N))
            fields[0] = drift(fields[0], potential, cp.float32(1e-5))

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: cp.cuda.Device().synchronize())
