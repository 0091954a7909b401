"""Reports and SQLite exports of Nsight Systems."""
