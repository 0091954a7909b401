"""Pure functions from timelines to tables, in packages by the question that they answer."""
