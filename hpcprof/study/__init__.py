"""What the studies compute between their runs; `hpcprof.cli.study` submits these."""
