"""Tests that compute something small."""

from __future__ import annotations

import torch

# Threads of a busy machine wait for each other longer than they compute.
torch.set_num_threads(1)
