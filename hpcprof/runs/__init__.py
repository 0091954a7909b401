"""Runs: the folder of one submission, its manifest, names and files, without what submits it."""
