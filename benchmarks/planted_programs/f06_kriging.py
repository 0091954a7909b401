"""Fit Gaussian processes to many stations. Cause: each matrix is factorized by a call of its own."""

import blocks as loop
import torch

S, N, D = (8, 16, 3) if loop.SMALL else (256, 256, 8)


def build():
    dev = loop.device()
    torch.manual_seed(0)
    with torch.device(dev):
        x, y = torch.randn(S, N, D), torch.randn(S, N, 1)
        scale = torch.zeros(S, 1, D, requires_grad=True)
        noise = torch.zeros(S, 1, 1, requires_grad=True)
        one = torch.eye(N)
    opt = torch.optim.Adam([scale, noise], 1e-2)

    def likelihood(k, y):
        low, _ = torch.linalg.cholesky_ex(k)
        z = torch.linalg.solve_triangular(low, y, upper=False)
        return 0.5 * (z * z).sum() + low.diagonal(dim1=-2, dim2=-1).log().sum()

    def step(cause, i):
        z = x * scale.exp()
        squares = (z * z).sum(-1, keepdim=True)
        k = (z @ z.mT - 0.5 * squares - 0.5 * squares.mT).exp() + (0.1 + noise.exp()) * one
        loss = torch.stack([likelihood(k[s], y[s]) for s in range(S)]).sum() if cause else likelihood(k, y)
        loss.backward()
        opt.step()
        opt.zero_grad()

    return step


if __name__ == "__main__":
    loop.main(build)
