"""The workload ``calls``: times of single calls of CUDA's driver."""
