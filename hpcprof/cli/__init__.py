"""The ``hpcprof`` command: one file per command, which parses, calls one function and prints."""
