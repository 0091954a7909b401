"""What the nodes of a run did, joined to its steps: clocks, power, memory, network and file systems."""
