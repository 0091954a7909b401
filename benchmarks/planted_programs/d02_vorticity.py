"""Two-dimensional turbulence by a spectral method in CuPy; each step's field goes to the host."""

import importlib

from turns import run

xp = None


def build(variant, device):
    global xp
    xp = importlib.import_module("cupy" if device == "cuda" else "numpy")
    n = 2048 if device == "cuda" else 32
    k = xp.fft.fftfreq(n, 1 / n).astype("f4")[:, None]
    m = xp.fft.rfftfreq(n, 1 / n).astype("f4")[None]
    k2 = k * k + m * m
    inverse = xp.where(k2 > 0, 1 / xp.maximum(k2, 1), 0).astype("f4")
    decay = xp.exp(-1e-5 * k2).astype("f4")
    keep = ((abs(k) < n / 3) & (m < n / 3)).astype("f4")
    rng = xp.random.default_rng(0) if device != "cuda" else xp.random
    w = xp.fft.rfft2(rng.standard_normal((n, n)).astype("f4")).astype("c8") * keep * decay**200
    count = 0
    if device == "cuda":
        import numpy

        if variant == "planted":
            hosts = [numpy.zeros((n, n), "f4") for _ in range(2)]
        else:
            buffers = [xp.cuda.alloc_pinned_memory(4 * n * n) for _ in range(2)]
            hosts = [numpy.frombuffer(each, "f4", n * n).reshape(n, n) for each in buffers]
            aside, written = xp.cuda.Stream(non_blocking=True), [xp.cuda.Event() for _ in range(2)]
            leaving = [None, None]

    def put_out(field):
        if device != "cuda":
            return
        slot = count % 2
        if variant == "planted":
            field.get(out=hosts[slot])
            return
        written[slot].synchronize()
        aside.wait_event(xp.cuda.get_current_stream().record())
        leaving[slot] = field
        field.get(stream=aside, out=hosts[slot], blocking=False)
        written[slot].record(aside)

    def step():
        nonlocal w, count
        psi = w * inverse
        u, v = xp.fft.irfft2(1j * m * psi), xp.fft.irfft2(-1j * k * psi)
        wx, wy = xp.fft.irfft2(1j * k * w), xp.fft.irfft2(1j * m * w)
        w = ((w - 1e-4 * xp.fft.rfft2(u * wx + v * wy) * keep) * decay).astype("c8")
        put_out(xp.fft.irfft2(w).astype("f4"))
        count += 1

    return step


run("d02_vorticity", 120, build, lambda: xp.__name__ == "cupy" and xp.cuda.Device().synchronize())
