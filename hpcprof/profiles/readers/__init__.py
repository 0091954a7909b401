"""Readers: one package per profiler's file format."""
