"""Totals by name, as ``nsys stats`` prints them: kernels, API calls, ranges, memory."""
