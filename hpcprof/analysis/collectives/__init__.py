"""Collectives: per rank, matched across ranks on aligned clocks, and the ranks that come late to them."""
