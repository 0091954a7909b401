"""Train an image mixer in JAX; batches are cropped and normalised with NumPy on the host."""

import argparse
import json
import os
import statistics
import time

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
if args.device == "cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np

on_gpu = args.device != "cpu"
if on_gpu:
    BATCH, SIDE, CROP, PATCH, D, DEPTH, POOL = 256, 72, 64, 8, 1024, 5, 2048
else:
    BATCH, SIDE, CROP, PATCH, D, DEPTH, POOL = 16, 20, 16, 8, 32, 2, 64
TOK, PIX, CLASSES = (CROP // PATCH) ** 2, PATCH * PATCH * 3, 100
rng = np.random.default_rng(0)
images = rng.integers(0, 256, (POOL, SIDE, SIDE, 3), dtype=np.uint8)
labels = rng.integers(0, CLASSES, POOL)
MEAN = np.array([124.0, 116.0, 104.0], np.float32)
STD = np.array([58.0, 57.0, 57.5], np.float32)


def next_batch():
    pick = rng.integers(0, POOL, BATCH)
    out = np.empty((BATCH, CROP, CROP, 3), np.float32)
    offs = rng.integers(0, SIDE - CROP, (BATCH, 2))
    flips = rng.random(BATCH) < 0.5
    for n, (i, (y, x), f) in enumerate(zip(pick, offs, flips)):
        img = images[i, y : y + CROP, x : x + CROP]
        out[n] = img[:, ::-1] if f else img
    out -= MEAN
    out /= STD
    return out, labels[pick]


def init(key):
    ks = iter(jax.random.split(key, 4 * DEPTH + 2))
    g = lambda i, o: jax.random.normal(next(ks), (i, o), jnp.float32) / np.sqrt(i)
    return {
        "in": g(PIX, D),
        "head": g(D, CLASSES),
        "blocks": [
            {"t1": g(TOK, 2 * TOK), "t2": g(2 * TOK, TOK), "c1": g(D, 4 * D), "c2": g(4 * D, D)}
            for _ in range(DEPTH)
        ],
    }


def norm(x):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def forward(p, img):
    h = CROP // PATCH
    x = img.reshape(-1, h, PATCH, h, PATCH, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, TOK, PIX)
    c = lambda a: a.astype(jnp.bfloat16)
    x = c(x) @ c(p["in"])
    for b in p["blocks"]:
        y = norm(x).swapaxes(1, 2)
        x = x + (jax.nn.gelu(y @ c(b["t1"])) @ c(b["t2"])).swapaxes(1, 2)
        x = x + jax.nn.gelu(norm(x) @ c(b["c1"])) @ c(b["c2"])
    return (norm(x).mean(1) @ c(p["head"])).astype(jnp.float32)


def loss_fn(p, img, lab):
    logp = jax.nn.log_softmax(forward(p, img))
    return -jnp.take_along_axis(logp, lab[:, None], 1).mean()


@jax.jit
def train_step(p, m, img, lab):
    loss, g = jax.value_and_grad(loss_fn)(p, img, lab)
    m = jax.tree.map(lambda a, b: 0.9 * a + b, m, g)
    p = jax.tree.map(lambda a, b: a - 0.01 * b, p, m)
    return p, m, loss


params = init(jax.random.PRNGKey(0))
mom = jax.tree.map(jnp.zeros_like, params)
history = []


def step():
    global params, mom
    img, lab = next_batch()
    params, mom, loss = train_step(params, mom, img, lab)
    if args.variant == "planted":
        loss = float(loss)
    history.append(loss)


for _ in range(5 if on_gpu else 1):
    step()
float(history[-1])
history.clear()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(20, args.steps - done)
    for _ in range(n):
        step()
    done += n
    recent = [float(v) for v in history[-n:]]
    print(f"step {done} loss {sum(recent) / n:.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "a06_jax_train",
            "variant": args.variant,
        }
    )
)
