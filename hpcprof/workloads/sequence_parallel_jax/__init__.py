"""The workload ``sequence-parallel-jax``: the sequence-parallel block in JAX, in ``shard_map``."""
