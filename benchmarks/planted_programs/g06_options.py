"""Price options by Monte Carlo in CuPy. Cause: arrays come from the driver, as the pool of memory is off."""

import blocks as loop
import cupy as cp

P, T = (1000, 4) if loop.SMALL else (1 << 21, 16)


def build():
    pool = cp.get_default_memory_pool()
    rng = cp.random.default_rng(0)
    strikes = cp.linspace(80, 120, 8, dtype=cp.float32)[:, None]

    def step(cause, i):
        cp.cuda.set_allocator(None if cause else pool.malloc)
        log_price = cp.full(P, 4.6, cp.float32)
        variance = cp.full(P, 0.04, cp.float32)
        total = cp.zeros(P, cp.float32)
        for _ in range(T):
            a = rng.standard_normal(P, dtype=cp.float32)
            b = rng.standard_normal(P, dtype=cp.float32)
            root = cp.sqrt(cp.maximum(variance, 0) * (1 / T))
            log_price = log_price - 0.5 * root * root + root * a
            variance = variance + 1.5 * (0.04 - variance) / T + 0.3 * root * (-0.7 * a + 0.714 * b)
            total += cp.exp(log_price)
        paid = cp.maximum(total / T - strikes, 0).mean(axis=1)
        if i % 10 == 0:
            paid.get()

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: cp.cuda.Device().synchronize())
