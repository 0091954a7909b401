"""Answers about one run: its tables, explanation, windows of time, and SQL."""
