"""Memory of the ranks: contents of their GPUs' memory at the peak, and growth on the host."""
