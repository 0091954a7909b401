"""Logs of Darshan: what the processes of a job read and wrote, by file, and when (DXT)."""
