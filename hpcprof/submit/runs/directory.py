"""The names of version 0.3 for `hpcprof.runs.directory`, for plug-ins."""

from hpcprof.runs.directory import Manifest as Manifest
from hpcprof.runs.directory import Run as Run
