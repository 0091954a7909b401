"""Runs against each other: differences, regressions and scaling."""
