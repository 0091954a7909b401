"""Timelines in Perfetto's own format, protobuf, with all ranks on one clock."""
