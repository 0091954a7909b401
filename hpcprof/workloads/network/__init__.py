"""The workload ``network``: times of collectives and messages by size and number of ranks."""
