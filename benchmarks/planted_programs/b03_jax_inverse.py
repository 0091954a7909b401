"""Linear Bayesian inversion in JAX: log evidence of models whose number of active parameters varies.

Every few steps a new set of active parameters is proposed, so the matrices change size.
"""

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
OBS, LOW, HIGH, HOLD = (1024, 900, 1000, 15) if on_gpu else (40, 20, 30, 5)
ROOM = 1024 if on_gpu else 32
rng = np.random.default_rng(0)
basis = rng.standard_normal((OBS, ROOM)).astype(np.float32) / np.sqrt(OBS)
data = jnp.asarray(rng.standard_normal(OBS).astype(np.float32))


@jax.jit
def log_evidence(G, prior_sd, d):
    A = G * prior_sd[None, :]
    M = jnp.eye(A.shape[1], dtype=A.dtype) + A.T @ A
    chol = jnp.linalg.cholesky(M)
    z = jax.scipy.linalg.solve_triangular(chol, A.T @ d, lower=True)
    return -0.5 * (d @ d - z @ z) - jnp.log(jnp.diag(chol)).sum()


def propose(n):
    cols = rng.permutation(ROOM)[:n]
    G = basis[:, cols]
    sd = np.full(n, 0.5, np.float32)
    if args.variant == "mended":
        G = np.pad(G, ((0, 0), (0, ROOM - n)))
        sd = np.pad(sd, (0, ROOM - n))
    return jnp.asarray(G), jnp.asarray(sd)


sizes = rng.permutation(np.arange(LOW, HIGH))
at = 0


def step(i):
    global at
    if i % HOLD == 0:
        at += 1
    G, sd = propose(int(sizes[at % len(sizes)]))
    return float(log_evidence(G, sd, data))


for i in range(2 * HOLD):
    step(i)
per_step, done, total = [], 0, 0.0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(HOLD, args.steps - done)
    for i in range(n):
        total += step(done + i)
    done += n
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(f"mean log evidence {total / args.steps:.3f}")
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "b03_jax_inverse",
            "variant": args.variant,
        }
    )
)
