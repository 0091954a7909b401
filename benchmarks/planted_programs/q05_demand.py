"""Train a network that forecasts demand, in JAX.

Cause: dropout draws 32 random bits of Threefry for each activation.

``jax.random.bernoulli`` computes a whole block of Threefry (twenty rounds of integer arithmetic) for each
element, in every layer, which costs about as much as the products. Mended by eight bits for each, four
from a word. Reported: https://github.com/pytorch/xla/issues/3868 (29 % of BERT's throughput),
https://github.com/jax-ml/jax/issues/7676.
"""

import functools

import jax
import jax.numpy as jnp
import steps

ROWS, WIDTH, LAYERS, INPUTS = (8, 16, 2, 8) if steps.SMALL else (32768, 1024, 6, 256)
RATE = 0.1


def weights(key):
    def normal(*shape):
        nonlocal key
        key, used = jax.random.split(key)
        return jax.random.normal(used, shape) * shape[0] ** -0.5

    layers = [{"up": normal(WIDTH, 4 * WIDTH), "down": normal(4 * WIDTH, WIDTH) * 0.1} for _ in range(LAYERS)]
    return {"into": normal(INPUTS, WIDTH), "layers": layers, "out": normal(WIDTH, 1)}


def drop(x, key, cheap):
    if cheap:
        words = jax.random.bits(key, (x.shape[0], x.shape[1] // 4), jnp.uint32)
        words = jax.lax.optimization_barrier(words)
        kept = jnp.concatenate([(words >> shift & 255) >= int(RATE * 256) for shift in (0, 8, 16, 24)], 1)
    else:
        kept = jax.random.bernoulli(key, 1 - RATE, x.shape)
    return jnp.where(kept, x / (1 - RATE), 0).astype(x.dtype)


def norm(x):
    h = x.astype(jnp.float32)
    return (h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6)).astype(jnp.bfloat16)


def loss_of(model, batch, key, cheap):
    inputs, wanted = batch
    half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), model)
    x = inputs.astype(jnp.bfloat16) @ half["into"]
    for layer, used in zip(half["layers"], jax.random.split(key, LAYERS), strict=True):
        first, second = jax.random.split(used)
        h = drop(jax.nn.relu(norm(x) @ layer["up"]), first, cheap)
        x = x + drop(h @ layer["down"], second, cheap)
    return jnp.mean(((norm(x) @ half["out"])[:, 0].astype(jnp.float32) - wanted) ** 2)


@functools.partial(jax.jit, static_argnums=3, donate_argnums=(0,))
def update(state, batch, key, cheap):
    model, moving, count = state
    loss, gradient = jax.value_and_grad(loss_of)(model, batch, jax.random.fold_in(key, count), cheap)
    moving = jax.tree.map(lambda m, g: 0.9 * m + g, moving, gradient)
    model = jax.tree.map(lambda w, m: w - 1e-4 * m, model, moving)
    return (model, moving, count + 1), loss


def build(fixed):
    model = jax.jit(weights)(jax.random.key(0))
    state = [(model, jax.tree.map(jnp.zeros_like, model), jnp.int32(0))]
    keys = jax.random.split(jax.random.key(1), 5)
    batches = [(jax.random.normal(k, (ROWS, INPUTS)), jax.random.normal(k, (ROWS,))) for k in keys[:4]]
    build.state = state

    def step(i):
        state[0], _ = update(state[0], batches[i % 4], keys[4], fixed)

    return step


def finish():
    jax.block_until_ready(build.state)


if __name__ == "__main__":
    steps.main(build, 150, finish=finish)
