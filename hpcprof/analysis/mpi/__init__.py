"""The MPI calls of a run: messages and collectives matched over its ranks, waits, and efficiencies."""
