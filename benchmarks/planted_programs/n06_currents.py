"""Train a neural operator for currents in JAX. Clean: one compiled step, whose buffers are donated."""

from functools import partial

import blocks as loop
import jax
import jax.numpy as jnp
import optax

STATE = []
D, LAYERS, B, N = (16, 2, 2, 16) if loop.SMALL else (512, 6, 32, 1024)


def build():
    key = jax.random.key(0)
    shapes = {"mix": (N, N), "up": (D, 4 * D), "down": (4 * D, D)}
    weights = [
        {
            name: jax.random.normal(jax.random.fold_in(key, 3 * k + n), shape, jnp.bfloat16)
            * shape[0] ** -0.5
            for n, (name, shape) in enumerate(shapes.items())
        }
        for k in range(LAYERS)
    ]
    optimizer = optax.adam(1e-4)
    x, y = (jax.random.normal(jax.random.fold_in(key, 100 + k), (B, N, D), jnp.bfloat16) for k in range(2))
    STATE[:] = weights, optimizer.init(weights)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(weights, moments, x, y):
        def cost(weights):
            h = x
            for w in weights:
                h = h + jnp.einsum("mn,bnd->bmd", w["mix"], h)
                h = h + jax.nn.gelu(h @ w["up"]) @ w["down"]
            return jnp.mean((h - y).astype(jnp.float32) ** 2)

        change, moments = optimizer.update(jax.grad(cost)(weights), moments)
        return optax.apply_updates(weights, change), moments

    def step(cause, i):
        STATE[:] = update(*STATE, x, y)

    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: jax.block_until_ready(STATE))
