"""Kubernetes: its declaration, the manifest of a run, and the client that runs kubectl."""
