"""The verdict on a run that stands still: which ranks hold the others up, and where."""
