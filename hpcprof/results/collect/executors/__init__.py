"""Runs one function over many tasks: in this process, in processes of this machine, or over MPI."""
