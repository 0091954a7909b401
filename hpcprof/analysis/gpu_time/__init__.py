"""Where a GPU's time goes: compute, communication, copies and idle time."""
