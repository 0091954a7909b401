"""Matrix products whose rows are not aligned to 16 bytes, and the same products padded.

``python benchmarks/odd_shapes.py`` prints, for each product in half precision and each remainder of its odd
size, the alignment in the name of the kernel and the share of its time that padding to 64 saves. It needs a
GPU and PyTorch.
"""

import re
from collections.abc import Sequence

import torch
from torch.profiler import ProfilerActivity, profile

SHAPES = (("vocabulary", 16384, 50304, 768), ("hidden", 8192, 4096, 1024), ("batch", 2048, 2048, 4096))
REMAINDERS = (1, 2, 4)


def measured(shape: Sequence[int], layout: str) -> tuple[float, str]:
    """Return the median time of a product of shape (m, n, k) in µs, and the name of its kernel."""
    m, n, k = shape
    a = torch.randn((m, k) if layout[0] == "n" else (k, m), device="cuda", dtype=torch.bfloat16)
    b = torch.randn((k, n) if layout[1] == "n" else (n, k), device="cuda", dtype=torch.bfloat16)
    left, right = a if layout[0] == "n" else a.t(), b if layout[1] == "n" else b.t()
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as record:
        for _ in range(7):
            left @ right
        torch.cuda.synchronize()
    kernels = [one for one in record.events() if re.search("gemm|nvjet|cutlass", one.name)]
    times = sorted(one.device_time for one in kernels)
    return times[len(times) // 2], kernels[0].name


def main() -> None:
    """Print a row for each product."""
    for name, m, n, k in SHAPES:
        for layout in ("nn", "nt", "tn"):
            for size in (0, 2) if name == "hidden" else (1,):
                whole, _ = measured((m, n, k), layout)
                for remainder in REMAINDERS:
                    shape = [m, n, k]
                    shape[size] -= 64 - remainder
                    odd, kernel = measured(shape, layout)
                    found = re.search(r"align(\d+)", kernel)
                    saved = 1 - whole / odd
                    print(
                        f"{name} {'MNK'[size]} {shape} {layout} align {found[1] if found else '-'} "
                        f"{odd:.1f} us, padded {whole:.1f}, saved {saved:.2f} {kernel[:70]}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
