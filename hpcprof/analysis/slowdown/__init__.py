"""How much slower kernels are while communication runs."""
