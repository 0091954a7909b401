"""Correlate noise between seismic stations in CuPy. Cause: transforms of a length that is a prime number.

Two windows of 8,191 samples have 16,381 shifts, and FFTs of that prime length take cuFFT's Bluestein
algorithm, several longer transforms and products each. Mended by padding to ``next_fast_len``, 16,384.
Reported: https://github.com/cupy/cupy/pull/3571, https://github.com/AMReX-Codes/amrex/pull/5494 and
https://github.com/abTEM/abTEM/pull/347 (a warning for Bluestein's lengths on GPUs).
"""

import steps

try:
    import cupy as xp
    from cupyx.scipy.fft import next_fast_len
except ImportError:  # without a GPU
    import numpy as xp
    from scipy.fft import next_fast_len

STATIONS, SAMPLES, WINDOWS, KEPT = (4, 31, 2, 8) if steps.SMALL else (2048, 8191, 8, 2000)


if hasattr(xp, "ElementwiseKernel"):
    whiten = xp.ElementwiseKernel(
        "complex64 s, float32 water", "complex64 out", "out = s / (abs(s) + water)", "whiten"
    )
    against = xp.ElementwiseKernel(
        "complex64 s, complex64 other", "complex64 out", "out = s * conj(other)", "against"
    )
else:

    def whiten(s, water):
        return s / (xp.abs(s) + water)

    def against(s, other):
        return s * xp.conj(other)


def build(fixed):
    xp.random.seed(0)
    noise = [xp.random.standard_normal((STATIONS, SAMPLES)).astype(xp.float32) for _ in range(WINDOWS)]
    taper = xp.hanning(SAMPLES).astype(xp.float32)
    shifts = 2 * SAMPLES - 1
    length = next_fast_len(shifts) if fixed else shifts
    stack = xp.zeros((STATIONS, 2 * KEPT), xp.float32)
    water = xp.float32(1e-3)

    def step(i):
        """Some windows of all stations against one of them, the earliest and the latest shifts stacked."""
        for window in noise:
            spectrum = whiten(xp.fft.rfft(window * taper, length), water)
            product = against(spectrum, spectrum[i % STATIONS])
            shifted = xp.fft.irfft(product, length)
            stack[:, :KEPT] += shifted[:, -KEPT:]
            stack[:, KEPT:] += shifted[:, :KEPT]

    return step


def finish():
    if hasattr(xp, "cuda"):
        xp.cuda.Device().synchronize()


if __name__ == "__main__":
    steps.main(build, 200, finish=finish)
