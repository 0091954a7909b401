"""Robust statistics, which outliers hardly change."""

MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation (Rousseeuw, Croux 1993)."""
