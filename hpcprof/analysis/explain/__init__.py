"""The time of a step: its parts and their causes."""
