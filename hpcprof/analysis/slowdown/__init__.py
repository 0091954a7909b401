"""Slowdown of kernels while communication runs."""
