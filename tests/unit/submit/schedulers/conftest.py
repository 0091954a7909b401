"""A submitted run without a scheduler."""

from tests.submitted_run import make_run as make_run
