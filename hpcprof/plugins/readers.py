"""Declarations of readers, for the entry points of the group ``hpcprof.readers``."""

from hpcprof.profiles.readers.declaration import ProfileContent, ProfilePart, Reader, Scrubber, SeveralRanks

__all__ = ["ProfileContent", "ProfilePart", "Reader", "Scrubber", "SeveralRanks"]
