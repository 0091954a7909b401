"""Kinds of edges of the graph of a run."""

from enum import IntEnum


class EdgeKind(IntEnum):
    """The kind of an edge: what passes between its two nodes."""

    FIXED = 0
    """The target keeps its measured time: its cause is unknown."""
    HOST = 1
    """A thread works from the end of a call to the start of the next."""
    CALL = 2
    """A call takes its own time."""
    LAUNCH = 3
    """A call launches an operation."""
    STREAM = 4
    """A stream executes one operation after another."""
    EVENT = 5
    """An operation waits for one of another stream."""
    WAIT = 6
    """A call returns when an operation has ended."""
    RUN = 7
    """An operation takes its time."""
    ARRIVE = 8
    """A rank has come to a collective."""
    TRANSFER = 9
    """A collective ends on a rank, after the last rank has come."""
    MESSAGE = 10
    """A call of MPI ends its transfer time after the message, or the last rank of its collective, has
    come."""
    RENDEZVOUS = 11
    """A call that sends ends some time after its receiver has come."""
    JOIN = 12
    """A rank has come to a collective of MPI."""
    ORDER = 13
    """A call would receive this message if messages were received in the order in which they are sent."""
    AFTER_WAIT = 14
    """A kernel follows work of another stream for which its thread waited before the launch."""
