"""Train a residual network on JPEG pictures. Cause: the loader has two workers; the node has 16 cores."""

import io

import blocks as loop
import numpy as np
import torch
import torchvision
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DEV = loop.device()
B, S = (4, 64) if loop.SMALL else (48, 224)


class Photos(Dataset):
    def __init__(self):
        coarse = np.random.default_rng(0).integers(0, 256, (64, 24, 24, 3), dtype=np.uint8)
        self.files = []
        for each in coarse:
            file = io.BytesIO()
            Image.fromarray(each).resize((384, 384), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        picture = Image.open(io.BytesIO(self.files[i % 64])).convert("RGB")
        left, top = i * 7 % 60, i * 11 % 60
        picture = picture.resize((S, S), Image.Resampling.BILINEAR, (left, top, left + 320, top + 320))
        return torch.from_numpy(np.array(picture)), i % 1000


def build():
    torch.manual_seed(0)
    model = torchvision.models.resnet50().to(DEV, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)
    photos = Photos()

    def load(workers):
        return iter(DataLoader(photos, B, num_workers=workers, pin_memory=DEV == "cuda", prefetch_factor=2))

    loaders = {}

    def step(cause, i):
        if cause not in loaders:
            loaders[cause] = load(2 if cause else 14)
        pictures, labels = next(loaders[cause])
        pictures = pictures.to(DEV, non_blocking=True).permute(0, 3, 1, 2)
        labels = labels.to(DEV, non_blocking=True)
        with torch.autocast(DEV, torch.bfloat16):
            loss = F.cross_entropy(model(pictures.float().div_(255)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
