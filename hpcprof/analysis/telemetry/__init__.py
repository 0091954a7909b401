"""The nodes of a run, joined to its steps: clocks, power, memory, network and file systems."""
