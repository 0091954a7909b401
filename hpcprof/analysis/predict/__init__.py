"""Predictions: the operations of a run as a graph, replayed with other times or on other ranks."""
