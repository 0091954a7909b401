"""Teach robots with a laser scanner to keep off walls (actor and critic).

Cause: tensors from lists of arrays.

Sixty-four environments give an array each, and ``torch.tensor(list_of_arrays)`` reads them element by element
in each environment step. Mended by ``np.stack`` before. Reported:
https://github.com/pytorch/pytorch/issues/13918, https://github.com/pytorch/pytorch/issues/57467,
https://github.com/pfnet/pfrl/issues/189.
"""

import numpy as np
import steps
import torch
from torch import nn

DEV = steps.device()
ROBOTS, BEAMS, TURNS = (4, 64, 2) if steps.SMALL else (64, 1080, 4)
ANGLES = np.linspace(-2.35, 2.35, BEAMS, dtype=np.float32)


class Room:
    """A round room of radius 5; a robot moves and sees the distances to its wall."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.place, self.heading = self.rng.uniform(-2, 2, 2), self.rng.uniform(-3, 3)
        return self.scan()

    def scan(self):
        along = self.place[0] * np.cos(ANGLES + self.heading) + self.place[1] * np.sin(ANGLES + self.heading)
        return (np.sqrt(along**2 + 25 - self.place @ self.place) - along).astype(np.float32)

    def step(self, action):
        self.heading += (action - 2) * 0.2
        self.place = self.place + 0.1 * np.array([np.cos(self.heading), np.sin(self.heading)])
        if self.place @ self.place > 24:
            return self.reset(), -1.0
        return self.scan(), 0.1


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.eyes = nn.Sequential(
            nn.Conv1d(1, 32, 8, 4), nn.ReLU(), nn.Conv1d(32, 64, 4, 2), nn.ReLU(), nn.Flatten()
        )
        self.body = nn.Sequential(nn.LazyLinear(512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.actor, self.critic = nn.Linear(512, 5), nn.Linear(512, 1)

    def forward(self, scans):
        h = self.body(self.eyes(scans[:, None]))
        return torch.distributions.Categorical(logits=self.actor(h), validate_args=False), self.critic(h)[
            :, 0
        ]


def build(fixed):
    torch.manual_seed(0)
    rooms = [Room(seed) for seed in range(ROBOTS)]
    agent = Agent().to(DEV)
    seen = [[room.reset() for room in rooms]]
    agent(torch.zeros(2, BEAMS, device=DEV))
    optimizer = torch.optim.Adam(agent.parameters(), 3e-4, fused=DEV == "cuda")

    def tensor(arrays):
        if fixed:
            arrays = np.stack(arrays)
        return torch.tensor(arrays, dtype=torch.float32, device=DEV)

    def step(i):
        """Some turns of all robots, then one update."""
        scans, actions, rewards = [], [], []
        for _ in range(TURNS):
            scans.append(tensor(seen[0]))
            with torch.no_grad():
                chosen = agent(scans[-1])[0].sample()
            actions.append(chosen)
            ends = [room.step(action) for room, action in zip(rooms, chosen.tolist(), strict=True)]
            seen[0] = [scan for scan, _ in ends]
            rewards.append(torch.tensor([reward for _, reward in ends], device=DEV))
        policy, value = agent(torch.cat(scans))
        gain = torch.cat(rewards) - value
        loss = -(policy.log_prob(torch.cat(actions)) * gain.detach()).mean() + 0.5 * gain.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    steps.main(build, 200)
