"""Schedulers: one package each for Slurm, PBS, Kubernetes and this machine."""
