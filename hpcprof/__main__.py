"""``python -m hpcprof``."""

from hpcprof.cli.main import main

main()
