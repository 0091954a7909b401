"""Helpers for numpy columns: distinct values, joins, ordering, intervals."""
