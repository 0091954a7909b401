"""The helpers beside a program on its node: standard library alone. Each run folder has a copy."""
