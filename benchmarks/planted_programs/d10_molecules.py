"""Train a graph network in JAX. Nothing is planted; mended: the same program."""

import os

from turns import run

state = None


def build(variant, device):
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if device != "cuda":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp

    nodes, edges, width, layers = (100_000, 1_000_000, 128, 4) if device == "cuda" else (20, 60, 8, 2)
    keys = jax.random.split(jax.random.key(0), 8)
    senders = jax.random.randint(keys[0], (edges,), 0, nodes)
    receivers = jnp.sort(jax.random.randint(keys[1], (edges,), 0, nodes))
    features = jax.random.normal(keys[2], (nodes, width))
    target = jax.random.normal(keys[3], (nodes,))
    weights = [jax.random.normal(keys[4], (2, width, width)) * width**-0.5 for _ in range(layers)]

    def loss(weights, features):
        x = features
        for sent, kept in weights:
            messages = jax.nn.relu(x @ sent)[senders]
            gathered = jax.ops.segment_sum(messages, receivers, nodes, indices_are_sorted=True)
            x = x + jax.nn.relu(x @ kept + 0.1 * gathered)
        return jnp.mean((x.mean(1) - target) ** 2)

    @jax.jit
    def update(weights, features):
        slope = jax.grad(loss)(weights, features)
        return [w - 1e-3 * g for w, g in zip(weights, slope, strict=True)]

    def step():
        nonlocal weights
        global state
        weights = update(weights, features)
        state = weights

    return step


def wait():
    import jax

    jax.block_until_ready(state)


run("d10_molecules", 60, build, wait)
