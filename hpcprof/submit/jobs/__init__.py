"""Jobs: what is asked for, checked against a site."""
