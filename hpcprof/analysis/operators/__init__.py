"""PyTorch operators: their time on the host and the GPU, their kernels, and matrix multiplications."""
