"""The scheduler ``local``, this machine: its declaration, its client, and the supervisor of a job."""
