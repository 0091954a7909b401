"""``python -m hpcprof``."""

from hpcprof.cli.main import main

# Other processes that compute for this one import it.
if __name__ == "__main__":
    main()
