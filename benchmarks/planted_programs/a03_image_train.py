"""Train a small residual network on image shards read by DataLoader workers."""

import argparse
import json
import lzma
import statistics
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
dev = torch.device(args.device)
on_gpu = dev.type == "cuda"
SIDE, CROP, BATCH, WIDTH, WORKERS, LOG = (144, 128, 128, 64, 4, 12) if on_gpu else (40, 32, 8, 8, 2, 4)
torch.manual_seed(0)


def synthetic_image(rng):
    small = rng.integers(0, 256, (SIDE // 4, SIDE // 4, 3), dtype=np.uint8)
    img = small.repeat(4, 0).repeat(4, 1)
    return img ^ (rng.random(img.shape) < 0.02).astype(np.uint8)


class Shard:
    """A list of images, each kept as raw bytes or packed with xz."""

    def __init__(self, seed, packed):
        rng = np.random.default_rng(seed)
        blobs = [synthetic_image(rng).tobytes() for _ in range(48 if on_gpu else 8)]
        self.packed = packed
        self.blobs = [lzma.compress(b, preset=0) for b in blobs] if packed else blobs

    def __getitem__(self, i):
        blob = self.blobs[i % len(self.blobs)]
        if self.packed:
            blob = lzma.decompress(blob)
        return np.frombuffer(blob, dtype=np.uint8).reshape(SIDE, SIDE, 3)


class Images(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        info = get_worker_info()
        shard = self.shards[info.id]
        rng = np.random.default_rng(info.id)
        i = 0
        while True:
            img = shard[i]
            y, x = rng.integers(0, SIDE - CROP, 2)
            img = img[y : y + CROP, x : x + CROP]
            if rng.random() < 0.5:
                img = img[:, ::-1]
            yield np.ascontiguousarray(img.transpose(2, 0, 1)), i % 100
            i += 1


def start_worker(_):
    torch.set_num_threads(1)


class Res(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.c1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.c2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.b1, self.b2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.skip = (
            nn.Conv2d(cin, cout, 1, stride, bias=False) if cin != cout or stride > 1 else nn.Identity()
        )

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(self.b2(self.c2(y)) + self.skip(x))


def network():
    w = WIDTH
    parts = [nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w), nn.ReLU()]
    for cin, cout, s in [
        (w, w, 1),
        (w, w, 1),
        (w, 2 * w, 2),
        (2 * w, 2 * w, 1),
        (2 * w, 4 * w, 2),
        (4 * w, 4 * w, 1),
        (4 * w, 8 * w, 2),
        (8 * w, 8 * w, 1),
    ]:
        parts.append(Res(cin, cout, s))
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, 100))


def main():
    torch.backends.cudnn.benchmark = True
    shards = [Shard(s, packed=(args.variant == "planted" and s == 1)) for s in range(WORKERS)]
    loader = DataLoader(
        Images(shards),
        batch_size=BATCH,
        num_workers=WORKERS,
        pin_memory=on_gpu,
        prefetch_factor=2,
        worker_init_fn=start_worker,
    )
    model = network().to(dev, memory_format=torch.channels_last)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=True)
    batches = iter(loader)

    def step():
        x, y = next(batches)
        x = x.to(dev, non_blocking=True).float().div_(255).contiguous(memory_format=torch.channels_last)
        y = y.to(dev, non_blocking=True)
        with torch.autocast(dev.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        return loss

    for _ in range(12 if on_gpu else 2):
        loss = step()
    loss.item()
    per_step, done = [], 0
    t0 = begin = time.perf_counter()
    while done < args.steps:
        n = min(LOG, args.steps - done)
        for _ in range(n):
            loss = step()
        done += n
        print(f"step {done} loss {loss.item():.3f}", flush=True)
        t1 = time.perf_counter()
        per_step.append((t1 - t0) / n * 1e3)
        t0 = t1
    print(
        json.dumps(
            {
                "step_ms_median": round(statistics.median(per_step), 4),
                "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
                "steps": args.steps,
                "program": "a03_image_train",
                "variant": args.variant,
            }
        )
    )


if __name__ == "__main__":
    main()
