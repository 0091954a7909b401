"""The workload ``sequence-parallel``: all-gather, two matmuls, reduce-scatter."""
