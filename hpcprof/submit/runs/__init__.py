"""Runs that were submitted: why one failed, and captures of a running one."""
