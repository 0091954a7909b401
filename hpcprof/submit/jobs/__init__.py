"""Jobs: requests, job files, and jobs that were checked against their sites."""
