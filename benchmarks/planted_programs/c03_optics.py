"""Propagate light through phase plates with CuPy; each step adds up the images of some wavelengths."""

import argparse
import json
import statistics
import time

import numpy as np

try:
    import cupy as cp
except ImportError:
    cp = None

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
on_gpu = args.device != "cpu"
xp = cp if on_gpu else np
SIZE, PLATES, WAVES = (256, 10, 6) if on_gpu else (16, 2, 2)


def _phase(rho, phi, a, b):
    return xp.exp(1j * 2 * np.pi * (a * xp.sin(phi) * rho**2 + b * xp.cos(2 * phi) * rho**4 - a * b * rho))


def _screen(field, phase, gain, edge):
    return field * phase * gain * edge + 0.001 * field


def _image(field, image):
    return image + xp.abs(field) ** 2


if args.variant == "mended" and on_gpu:
    _phase, _screen, _image = cp.fuse(_phase), cp.fuse(_screen), cp.fuse(_image)
line = xp.linspace(-1, 1, SIZE)
xx, yy = xp.meshgrid(line, line)
rho, phi = xp.sqrt(xx**2 + yy**2), xp.arctan2(yy, xx)
edge = (rho < 1).astype(rho.dtype)
count = 0


def step():
    global count
    count += 1
    image = xp.zeros((SIZE, SIZE))
    for wave in range(WAVES):
        field = edge.astype(complex)
        for plate in range(PLATES):
            phase = _phase(rho, phi, 0.1 * plate + 0.01 * wave, 0.001 * (count % 7))
            field = xp.fft.fft2(_screen(field, phase, 1.0 / SIZE, edge))
        image = _image(field, image)
    return image.sum()


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
    print(f"step {done} light {float(loss):.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "c03_optics",
            "variant": args.variant,
        }
    )
)
