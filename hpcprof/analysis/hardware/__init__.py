"""Kernels measured by hardware counters: Nsight Compute tables and the roofline."""
