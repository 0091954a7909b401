"""Slurm: its declaration, the client of its commands, and their parsers."""
