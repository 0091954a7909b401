"""Reports and tables of Nsight Compute."""
