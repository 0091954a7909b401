"""Train a perceptron in JAX whose loss is compiled and whose optimizer is not."""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
on_gpu = args.device != "cpu"
WIDTH, DEPTH, BATCH = (1024, 8, 1024) if on_gpu else (16, 2, 8)
rng = np.random.default_rng(0)


def leaf(*shape):
    return jnp.asarray(rng.standard_normal(shape).astype(np.float32) / np.sqrt(shape[0]))


params = [{"w": leaf(WIDTH, WIDTH), "b": leaf(WIDTH)} for _ in range(DEPTH)]
x, y = leaf(BATCH, WIDTH), leaf(BATCH, WIDTH)


@jax.jit
def gradient(params, x, y):
    def loss(params):
        h = x
        for layer in params:
            h = jax.nn.relu(h @ layer["w"] + layer["b"])
        return jnp.mean((h - y) ** 2)

    return jax.value_and_grad(loss)(params)


optimizer = optax.adamw(1e-4)


def update(grads, state, params):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state


if args.variant == "mended":
    update = jax.jit(update)
state = optimizer.init(params)


def step():
    global params, state
    loss, grads = gradient(params, x, y)
    params, state = update(grads, state, params)
    return loss


for _ in range(8 if on_gpu else 1):
    loss = step()
float(loss)
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(10, args.steps - done)
    for _ in range(n):
        loss = step()
    done += n
    print(f"step {done} loss {float(loss):.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "c07_haiku_style",
            "variant": args.variant,
        }
    )
)
