"""Rendering: the scripts and manifests of a job, from templates."""
