"""Integrate a neural equation in JAX. Cause: a loop in Python calls the compiled step 60 times."""

import blocks as loop
import jax
import jax.numpy as jnp

D, H, B, T = (4, 8, 16, 4) if loop.SMALL else (64, 512, 4096, 60)


def build():
    keys = jax.random.split(jax.random.key(0), 4)
    w = [
        jax.random.normal(keys[0], (D, H)) / D**0.5,
        jax.random.normal(keys[1], (H, H)) / H**0.5,
        jax.random.normal(keys[2], (H, D)) / H,
    ]

    def slope(w, y, t):
        h = jnp.tanh(y @ w[0] + t)
        return jnp.tanh(h @ w[1]) @ w[2]

    def rk4(w, y, t):
        dt = 1.0 / T
        a = slope(w, y, t)
        b = slope(w, y + dt / 2 * a, t + dt / 2)
        c = slope(w, y + dt / 2 * b, t + dt / 2)
        d = slope(w, y + dt * c, t + dt)
        return y + dt / 6 * (a + 2 * b + 2 * c + d)

    one = jax.jit(rk4)

    @jax.jit
    def all_of_them(w, y):
        return jax.lax.fori_loop(0, T, lambda k, y: rk4(w, y, k / T), y)

    state = [jax.random.normal(keys[3], (B, D))]

    def step(cause, i):
        y = state[0]
        if cause:
            for k in range(T):
                y = one(w, y, k / T)
        else:
            y = all_of_them(w, y)
        state[0] = y / jnp.abs(y).max()
        if i % 10 == 0:
            float(state[0][0, 0])

    return step, lambda: jax.block_until_ready(state)


if __name__ == "__main__":
    built, end = build()
    loop.main(lambda: built, finish=end)
