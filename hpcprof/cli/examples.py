"""The examples under every ``--help``."""


def examples(*commands: str) -> str:
    """Return an epilogue with one command a line; click leaves lines after ``\\b`` as they are."""
    return "\n".join(("\b", "Examples:" if len(commands) > 1 else "Example:", *(f"  {c}" for c in commands)))
