"""GPU time: compute, communication, copies and idle time."""
