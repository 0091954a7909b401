"""The start-up hook of the PyTorch profiler, for programs that do not mark what to profile."""
