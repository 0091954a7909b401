"""Train a state-space model in JAX. Cause: states by `scan`, not by an associative scan."""

import functools

import blocks as loop
import jax
import jax.numpy as jnp

B, T, D, L = (2, 16, 8, 1) if loop.SMALL else (16, 512, 768, 4)


def build():
    keys = jax.random.split(jax.random.key(0), 3 * L + 2)
    weights = [
        (
            jax.random.normal(keys[3 * k], (D, 2 * D)) / D**0.5,
            jax.random.normal(keys[3 * k + 1], (2 * D, D)) / D**0.5,
            jax.random.uniform(keys[3 * k + 2], (2 * D,)),
        )
        for k in range(L)
    ]
    data = jax.random.normal(keys[-1], (4, B, T, D))

    def one_by_one(decay, x):
        def body(h, each):
            h = decay * h + each
            return h, h

        return jax.lax.scan(body, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    def together(decay, x):
        def joined(a, b):
            return a[0] * b[0], b[0] * a[1] + b[1]

        return jax.lax.associative_scan(joined, (jnp.broadcast_to(decay, x.shape), x), axis=1)[1]

    def loss(weights, x, states):
        h = x
        for into, out, rate in weights:
            h = h + jax.nn.gelu(states(jax.nn.sigmoid(rate), h @ into)) @ out
            h = h * jax.lax.rsqrt((h * h).mean(-1, keepdims=True) + 1e-6)
        return ((h[:, :-1] - x[:, 1:]) ** 2).mean()

    @functools.partial(jax.jit, static_argnums=2)
    def train(weights, x, cause):
        gradients = jax.grad(loss)(weights, x, one_by_one if cause else together)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    state = [weights]

    def step(cause, i):
        state[0] = train(state[0], data[i % 4], cause)

    return step, lambda: jax.block_until_ready(state)


if __name__ == "__main__":
    built, end = build()
    loop.main(lambda: built, finish=end)
