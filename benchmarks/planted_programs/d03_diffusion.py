"""Implicit diffusion with a sparse matrix in CuPy; the walls' temperatures change with time."""

import importlib
import math

import numpy
from turns import run

xp = None


def build(variant, device):
    global xp
    xp = importlib.import_module("cupy" if device == "cuda" else "numpy")
    sparse = importlib.import_module("cupyx.scipy.sparse" if device == "cuda" else "scipy.sparse")
    n, sweeps = (1400, 30) if device == "cuda" else (24, 3)
    size = n * n
    off, far = xp.full(size, -1, "f4"), xp.full(size, -1, "f4")
    off[::n] = 0
    shifts = [(far, -n), (xp.roll(off, -1), -1), (xp.full(size, 5, "f4"), 0), (off, 1), (far, n)]
    matrix = sparse.spdiags(
        xp.stack([values for values, _ in shifts]), xp.array([shift for _, shift in shifts]), size, size
    ).tocsr()
    along = numpy.arange(n)
    wall = numpy.concatenate([along, size - n + along, along * n, along * n + n - 1])
    places = xp.asarray(wall)
    positions = (wall / size).tolist()
    array = numpy.array(positions)
    x = xp.zeros(size, "f4")
    time = 0.0

    def temperatures():
        if variant == "planted":
            return [math.sin(6 * p + time) + 0.5 * math.cos(17 * p - time) + 0.2 * p for p in positions]
        return numpy.sin(6 * array + time) + 0.5 * numpy.cos(17 * array - time) + 0.2 * array

    def step():
        nonlocal x, time
        right = x.copy()
        right[places] = xp.asarray(numpy.asarray(temperatures(), "f4"))
        direction = xp.zeros_like(x)
        for sweep in range(sweeps):  # Chebyshev's iteration: no sums, no waits
            rest = right - matrix @ x
            beta = (0.5 * 0.8 * 4 / 2) ** 2 / 16 if sweep else 0.0
            direction = rest / 5 + beta * direction
            x = x + direction
        time += 0.01

    return step


run("d03_diffusion", 120, build, lambda: xp.__name__ == "cupy" and xp.cuda.Device().synchronize())
