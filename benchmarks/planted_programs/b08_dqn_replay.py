"""Off-policy value learning: a simple environment on the CPU, a convolutional Q network on the GPU."""

import argparse
import json
import random
import statistics
import time
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--steps", type=int, default=60)
ap.add_argument("--variant", choices=["planted", "mended"], default="planted")
ap.add_argument("--device", default="cuda")
args = ap.parse_args()
dev = torch.device(args.device)
on_gpu = dev.type == "cuda"
SIDE, FRAMES, ACTIONS, BATCH, FILL = 20, 2, 5, (32 if on_gpu else 8), 256
torch.manual_seed(0)
random.seed(0)


class Grid:
    """A dot that is steered towards a target; the observation is the last two frames."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.reset()

    def reset(self):
        self.pos, self.goal = self.rng.integers(4, SIDE - 4, 2), self.rng.integers(4, SIDE - 4, 2)
        self.frames = deque([self.draw()] * FRAMES, maxlen=FRAMES)
        return np.stack(self.frames)

    def draw(self):
        f = np.zeros((SIDE, SIDE), np.float32)
        f[self.pos[0] - 2 : self.pos[0] + 3, self.pos[1] - 2 : self.pos[1] + 3] = 1
        f[self.goal[0] - 2 : self.goal[0] + 3, self.goal[1] - 2 : self.goal[1] + 3] = 0.5
        return f

    def step(self, a):
        move = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)][a]
        before = np.abs(self.pos - self.goal).sum()
        self.pos = np.clip(self.pos + move, 2, SIDE - 3)
        after = np.abs(self.pos - self.goal).sum()
        self.frames.append(self.draw())
        return np.stack(self.frames), float(before - after), bool(after == 0)


def make_net():
    return nn.Sequential(
        nn.Conv2d(FRAMES, 32, 4, 2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 512),
        nn.ReLU(),
        nn.Linear(512, ACTIONS),
    ).to(dev)


q, target = make_net(), make_net()
target.load_state_dict(q.state_dict())
opt = torch.optim.Adam(q.parameters(), lr=1e-4)
env, memory = Grid(), deque(maxlen=5000)
obs = env.reset()


def to_tensor(arrays, dtype=torch.float32):
    if args.variant == "mended":
        arrays = np.array(arrays)
    return torch.tensor(arrays, dtype=dtype, device=dev)


def act(random_part):
    global obs
    if random.random() < random_part:
        a = random.randrange(ACTIONS)
    else:
        with torch.no_grad():
            a = int(q(torch.from_numpy(obs).to(dev)[None]).argmax(1))
    new, reward, end = env.step(a)
    memory.append((obs, a, reward, new, end))
    obs = env.reset() if end else new


def learn():
    s, a, r, s2, e = zip(*random.sample(memory, BATCH))
    s, s2 = to_tensor(list(s)), to_tensor(list(s2))
    a = torch.tensor(a, device=dev)
    r, e = torch.tensor(r, device=dev), torch.tensor(e, dtype=torch.float32, device=dev)
    with torch.no_grad():
        y = r + 0.99 * (1 - e) * target(s2).max(1).values
    loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


for _ in range(FILL):
    act(1.0)
for _ in range(5 if on_gpu else 1):
    act(0.1)
    loss = learn()
loss.item()
per_step, done = [], 0
t0 = begin = time.perf_counter()
while done < args.steps:
    n = min(10, args.steps - done)
    for _ in range(n):
        for _ in range(4):
            act(0.1)
        loss = learn()
    done += n
    print(f"update {done} loss {loss.item():.4f}", flush=True)
    t1 = time.perf_counter()
    per_step.append((t1 - t0) / n * 1e3)
    t0 = t1
print(
    json.dumps(
        {
            "step_ms_median": round(statistics.median(per_step), 4),
            "step_ms_mean": round((t0 - begin) / args.steps * 1e3, 4),
            "steps": args.steps,
            "program": "b08_dqn_replay",
            "variant": args.variant,
        }
    )
)
