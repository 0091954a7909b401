"""Account of the time of each step: its parts, and what idle GPUs wait for."""
