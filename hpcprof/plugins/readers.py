"""Declarations of readers, for the entry points of the group ``hpcprof.readers``."""

from hpcprof.profiles.readers.declaration import Part, ProfileContent, Reader, Scrubber, SeveralRanks

__all__ = ["Part", "ProfileContent", "Reader", "Scrubber", "SeveralRanks"]
