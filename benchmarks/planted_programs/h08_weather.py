"""Forecast on a sphere in JAX. Cause: each field is written to the host before the next step."""

import blocks as loop
import jax
import jax.numpy as jnp
import numpy as np

N, C, H, L = (32, 4, 8, 1) if loop.SMALL else (512, 64, 512, 6)


def build():
    keys = jax.random.split(jax.random.key(0), 2 * L)
    params = [
        (jax.random.normal(keys[2 * k], (C, H)) / C**0.5, jax.random.normal(keys[2 * k + 1], (H, C)) / H)
        for k in range(L)
    ]
    written = np.zeros((N, N, C), np.float32)

    @jax.jit
    def advance(params, x):
        for up, down in params:
            near = sum(jnp.roll(x, s, a) for a in (0, 1) for s in (1, -1)) / 4
            x = x + jax.nn.gelu((x + near) @ up) @ down
        return x / (1e-3 + jnp.abs(x).max())

    state = [jax.random.normal(jax.random.key(1), (N, N, C))]

    def step(cause, i):
        state[0] = advance(params, state[0])
        if cause:
            written[:] = np.asarray(state[0])

    return step, lambda: jax.block_until_ready(state)


if __name__ == "__main__":
    built, end = build()
    loop.main(lambda: built, finish=end)
