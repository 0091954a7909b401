"""Profiles: from a profiler's file to a timeline."""
