"""This machine as a scheduler: its declaration, its client, and the supervisor of a job."""
