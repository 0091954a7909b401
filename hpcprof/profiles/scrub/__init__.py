"""Copies of profiles for sharing, without anything that identifies users or machines."""
