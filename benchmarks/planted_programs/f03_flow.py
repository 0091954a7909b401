"""Train a normalizing flow in JAX. Cause: the step calls the host, which draws the next base samples."""

import blocks as loop
import jax
import jax.numpy as jnp
import numpy as np
import optax

D, H, L, B = (8, 16, 2, 64) if loop.SMALL else (64, 1024, 8, 16384)


def coupling(p, x, flip):
    a, b = (x[:, D // 2 :], x[:, : D // 2]) if flip else (x[:, : D // 2], x[:, D // 2 :])
    h = jnp.tanh(a @ p["w0"] + p["b0"])
    h = jnp.tanh(h @ p["w1"] + p["b1"])
    s, t = jnp.split(h @ p["w2"], 2, -1)
    s = jnp.tanh(s)
    b = b * jnp.exp(s) + t
    return jnp.concatenate((b, a) if flip else (a, b), -1), s.sum(-1)


def energy(x):
    return 0.5 * (x**2).sum(-1) + jnp.cos(3 * x).sum(-1)


def build():
    rng = np.random.default_rng(0)
    keys = jax.random.split(jax.random.key(0), 3 * L)
    params = [
        {
            "w0": jax.random.normal(keys[3 * k], (D // 2, H)) / D,
            "b0": jnp.zeros(H),
            "w1": jax.random.normal(keys[3 * k + 1], (H, H)) / H**0.5,
            "b1": jnp.zeros(H),
            "w2": jax.random.normal(keys[3 * k + 2], (H, D)) * 1e-3,
        }
        for k in range(L)
    ]
    optimizer = optax.adam(1e-4)
    state = optimizer.init(params)

    def loss(params, z):
        log_det = 0.0
        for k, p in enumerate(params):
            z, s = coupling(p, z, k % 2)
            log_det = log_det + s
        return (energy(z) - log_det).mean()

    def update(params, state, z):
        grads = jax.grad(loss)(params, z)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def host_draws(count):
        return rng.standard_normal((B, D), dtype=np.float32)

    @jax.jit
    def with_host(params, state, i):
        z = jax.pure_callback(host_draws, jax.ShapeDtypeStruct((B, D), jnp.float32), i)
        return update(params, state, z)

    @jax.jit
    def without(params, state, i):
        return update(params, state, jax.random.normal(jax.random.key(i), (B, D)))

    kept = [params, state]

    def step(cause, i):
        kept[:] = (with_host if cause else without)(*kept, i)

    return step, lambda: jax.block_until_ready(kept)


if __name__ == "__main__":
    built, end = build()
    loop.main(lambda: built, finish=end)
