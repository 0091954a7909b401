"""Confidence intervals and tests that several analyses share."""
