"""From a site and a job to a running job."""
