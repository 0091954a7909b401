"""Shared code that knows nothing of the domain: errors, units, files, processes, logs."""

__version__ = "0.3.0"
