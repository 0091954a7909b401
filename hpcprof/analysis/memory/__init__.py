"""Memory of the ranks: what fills that of their GPUs at the peak, and whether that of the host grows."""
