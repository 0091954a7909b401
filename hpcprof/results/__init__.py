"""From profiles to answers that last: collect, the store, queries and the Python API."""
