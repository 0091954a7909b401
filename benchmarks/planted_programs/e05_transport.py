"""Optimal transport in JAX. Cause: a while_loop whose condition the host fetches in each turn."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import blocks as loop

N, TURNS = (64, 5) if loop.SMALL else (3072, 40)


def build():
    import jax
    import jax.numpy as jnp

    key = jax.random.key(0)
    kernel = jnp.exp(-jax.random.uniform(key, (N, N)))

    def turn(u, v, a, b):
        u = a / (kernel @ v)
        return u, b / (kernel.T @ u)

    @jax.jit
    def fixed(a, b):
        u, v = jax.lax.fori_loop(0, TURNS, lambda _, uv: turn(*uv, a, b), (a, b))
        return u * (kernel @ v)

    @jax.jit
    def until(a, b):
        def going(s):
            return (s[3] > 0) & (s[2] < TURNS)

        def body(s):
            u, v = turn(s[0], s[1], a, b)
            return u, v, s[2] + 1, 1 + jnp.abs(u - s[0]).max()

        u, v, _, _ = jax.lax.while_loop(going, body, (a, b, 0, jnp.float32(1)))
        return u * (kernel @ v)

    state = {"a": jnp.full((N,), 1 / N), "b": jax.random.uniform(key, (N,)) + 0.5}
    state["b"] = state["b"] / state["b"].sum()

    def step(cause, i):
        state["a"] = (until if cause else fixed)(state["a"], state["b"])

    def finish():
        state["a"].block_until_ready()

    build.finish = finish
    return step


if __name__ == "__main__":
    loop.main(build, finish=lambda: build.finish())
