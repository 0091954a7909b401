"""Tune an adapter in JAX. Cause: the frozen weights are NumPy arrays, so each call copies them to the GPU."""

import blocks as loop
import jax
import jax.numpy as jnp
import numpy as np
import optax

STATE = []
D, LAYERS, B, T = (32, 2, 2, 8) if loop.SMALL else (1024, 6, 16, 512)


def forward(frozen, adapter, x):
    for w, a in zip(frozen, adapter, strict=True):
        h = x / jnp.sqrt(jnp.mean(x.astype(jnp.float32) ** 2, -1, keepdims=True) + 1e-6).astype(x.dtype)
        h = jax.nn.gelu(h @ w["up"] + (h @ a["down"]) @ a["up"]) @ w["down"]
        x = x + h
    return x


def build():
    random = np.random.default_rng(0)

    def matrix(a, b, kind):
        return (random.standard_normal((a, b), dtype=np.float32) * a**-0.5).astype(kind)

    half = jnp.bfloat16
    frozen = [{"up": matrix(D, 4 * D, half), "down": matrix(4 * D, D, half)} for _ in range(LAYERS)]
    adapter = [{"down": matrix(D, 16, half), "up": matrix(16, 4 * D, half)} for _ in range(LAYERS)]
    adapter = jax.device_put(adapter)
    optimizer = optax.adam(1e-4)
    x, y = (jax.device_put(matrix(B * T, D, half)) for _ in range(2))
    given = {True: frozen, False: jax.device_put(frozen)}
    STATE[:] = adapter, optimizer.init(adapter)

    @jax.jit
    def update(frozen, adapter, moments, x, y):
        def cost(adapter):
            return jnp.mean((forward(frozen, adapter, x) - y).astype(jnp.float32) ** 2)

        change, moments = optimizer.update(jax.grad(cost)(adapter), moments)
        return optax.apply_updates(adapter, change), moments

    def step(cause, i):
        STATE[:] = update(given[cause], *STATE, x, y)

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: jax.block_until_ready(STATE))
