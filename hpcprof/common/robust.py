"""Robust statistics, which single values far off hardly change."""

MAD_TO_DEVIATION = 1.4826
"""Standard deviation of normal values over their median absolute deviation (Rousseeuw and Croux, 1993)."""
