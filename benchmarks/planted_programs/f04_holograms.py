"""Retrieve phases from diffraction patterns in CuPy. Cause: all is in double precision."""

import blocks as loop
import cupy as cp
import numpy as np

B, S = (2, 64) if loop.SMALL else (16, 1024)


onto_modulus = cp.ElementwiseKernel("T x, R m", "T y", "y = x * (m / (abs(x) + R(1e-6)))", "onto_modulus")
onto_support = cp.ElementwiseKernel(
    "T n, T o, R s", "T y", "y = n * s + (o - n * R(0.9)) * (R(1) - s)", "onto_support"
)


def build():
    rng = np.random.default_rng(0)
    i, j = np.mgrid[:S, :S] - S // 2
    support64 = (i**2 + j**2 < (S // 5) ** 2).astype(np.float64)
    truth = support64 * rng.random((B, S, S))
    measured = cp.abs(cp.fft.fft2(cp.asarray(truth.astype(np.complex64)))).astype(cp.float32)
    support = {True: cp.asarray(support64), False: cp.asarray(support64, dtype=cp.float32)}
    first = cp.asarray(rng.random((B, S, S)).astype(np.complex64))
    objects = {True: first.astype(np.complex128), False: first}
    patterns = {True: measured.astype(np.float64), False: measured}

    def step(cause, i):
        old = objects[cause]
        for _ in range(4):
            new = cp.fft.ifft2(onto_modulus(cp.fft.fft2(old), patterns[cause]))
            old = onto_support(new, old, support[cause])
        objects[cause] = old
        if i % 10 == 0:
            cp.linalg.norm(old)

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: cp.cuda.Device().synchronize())
