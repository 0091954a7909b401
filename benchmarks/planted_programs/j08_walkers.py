"""Diffusion Monte Carlo in CuPy. Cause: the generator of random numbers is made anew in each step."""

import blocks as loop
import cupy as cp

WALKERS, MOVES = 1 << 22, 8
moved = cp.ElementwiseKernel("T x, T noise, T dt", "T y", "y = x + dt * noise - 0.5f * dt * x", "moved")


def build():
    first = cp.random.RandomState(1)
    state = {"x": first.standard_normal((WALKERS, 3), dtype=cp.float32)}

    def step(cause, i):
        random = cp.random.RandomState(i) if cause else first
        x = state["x"]
        for _ in range(MOVES):
            x = moved(x, random.standard_normal((WALKERS, 3), dtype=cp.float32), cp.float32(0.02))
        state["x"] = x
        energy = float(cp.sum(x * x)) / WALKERS
        if not energy > 0:
            raise SystemExit(2)

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: cp.cuda.Device().synchronize())
