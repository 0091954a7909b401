"""Copies of profiles for sharing: what analyses read, and nothing that tells who ran what where."""
