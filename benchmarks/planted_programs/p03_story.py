"""Write text token by token in JAX. Cause: the cache of keys and values is not donated to the compiled step.

A compiled function may not change its arguments, so XLA copies each layer's cache for each token before it
puts one row in place. Mended by ``donate_argnums``.
Reported: https://github.com/jax-ml/jax/issues/16647 (a buffer copied in each iteration),
https://github.com/jax-ml/jax/issues/1832, https://github.com/sgl-project/sglang-jax/issues/65.
"""

import jax
import jax.numpy as jnp
import steps

ROWS, HEADS, SIZE, LENGTH, LAYERS, WORDS = (
    (2, 2, 8, 32, 2, 64) if steps.SMALL else (32, 16, 128, 2048, 8, 32000)
)
WIDTH = HEADS * SIZE


def weights(key):
    def normal(*shape):
        nonlocal key
        key, used = jax.random.split(key)
        return jax.random.normal(used, shape, jnp.bfloat16) * shape[0] ** -0.5

    layers = [
        {
            "qkv": normal(WIDTH, 3 * WIDTH),
            "out": normal(WIDTH, WIDTH),
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {"words": normal(WORDS, WIDTH), "places": normal(LENGTH, WIDTH), "layers": layers}


def norm(x):
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(jnp.bfloat16)


def attend(x, layer, cache, place):
    """One token of each row against all tokens before it; keys and values are (2, row, head, place, size)."""
    q, k, v = jnp.moveaxis((norm(x) @ layer["qkv"]).reshape(ROWS, 3, HEADS, SIZE), 1, 0)
    fresh = jnp.stack([k, v])[:, :, :, None]
    cache = jax.lax.dynamic_update_slice(cache, fresh, (0, 0, 0, place, 0))
    scores = jnp.einsum("bhd,bhsd->bhs", q, cache[0], preferred_element_type=jnp.float32) * SIZE**-0.5
    scores = jnp.where(jnp.arange(LENGTH) <= place, scores, -jnp.inf)
    mixed = jnp.einsum("bhs,bhsd->bhd", jax.nn.softmax(scores, -1).astype(jnp.bfloat16), cache[1])
    return x + mixed.reshape(ROWS, WIDTH) @ layer["out"], cache


def next_token(model, caches, token, place):
    x = model["words"][token] + model["places"][place]
    written = []
    for layer, cache in zip(model["layers"], caches, strict=True):
        x, cache = attend(x, layer, cache, place)
        written.append(cache)
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return written, jnp.argmax(norm(x) @ model["words"].T, -1), place + 1


def build(fixed):
    model = jax.jit(weights)(jax.random.key(0))
    caches = [jnp.zeros((2, ROWS, HEADS, LENGTH, SIZE), jnp.bfloat16) for _ in range(LAYERS)]
    state = [caches, jnp.zeros(ROWS, jnp.int32), jnp.int32(0)]
    compiled = jax.jit(next_token, donate_argnums=(1,) if fixed else ())
    build.state = state

    def step(i):
        state[:] = compiled(model, *state)

    return step


def finish():
    jax.block_until_ready(build.state)


if __name__ == "__main__":
    steps.main(build, 400, finish=finish)
