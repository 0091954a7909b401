"""Answers about several runs, and what is done with many: lists, packages, removal."""
