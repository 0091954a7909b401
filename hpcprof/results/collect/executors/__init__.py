"""Run one function over many tasks: in this process, in processes of this machine, over MPI or on Dask."""
