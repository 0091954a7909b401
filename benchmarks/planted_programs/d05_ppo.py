"""Policy gradients: 64 environments in NumPy on the host. A step is a rollout and an update."""

import numpy as np
import torch
from torch import nn
from turns import run


def build(variant, device):
    envs, moments, width = (64, 16, 512) if device == "cuda" else (4, 2, 16)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            self.logits, self.value = nn.Linear(width, 5), nn.Linear(width, 1)

        def forward(self, x):
            hidden = self.trunk(x)
            return self.logits(hidden), self.value(hidden).squeeze(-1)

    policy = Policy().to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-4, fused=True)
    state = rng.standard_normal((envs, 6)).astype("f4")

    def act(actions):
        nonlocal state
        force = np.array(actions, "f4")[:, None] - 2
        state = 0.98 * state + 0.05 * np.roll(state, 1, axis=1) + 0.1 * force
        reward = -np.square(state).sum(1)
        ended = reward < -60
        state[ended] = rng.standard_normal((int(ended.sum()), 6)).astype("f4")
        return reward.astype("f4")

    def step():
        seen, chosen, rewards = [], [], []
        for _ in range(moments):
            observed = torch.from_numpy(state.copy()).to(device)
            with torch.no_grad():
                logits, _ = policy(observed)
                actions = torch.multinomial(torch.softmax(logits, -1), 1).squeeze(1)
            if variant == "planted":
                rewards.append(act([actions[i].item() for i in range(envs)]))
            else:
                rewards.append(act(actions.tolist()))
            seen.append(observed)
            chosen.append(actions)
        gain = torch.from_numpy(np.cumsum(np.stack(rewards)[::-1], axis=0)[::-1].copy()).to(device).flatten()
        logits, value = policy(torch.cat(seen))
        likely = torch.log_softmax(logits, -1).gather(1, torch.cat(chosen)[:, None]).squeeze(1)
        loss = ((value - gain).square() * 0.5 - likely * (gain - value).detach()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


run("d05_ppo", 60, build, lambda: torch.cuda.is_available() and torch.cuda.synchronize())
