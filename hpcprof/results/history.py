"""The classes of histories under the name that they have in the Python reference."""

from hpcprof.results.across.history import History, HistoryPoint

__all__ = ["History", "HistoryPoint"]
