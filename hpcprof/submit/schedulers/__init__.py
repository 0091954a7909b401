"""Schedulers: one file each for Slurm, PBS, Kubernetes and this machine."""
