"""Output for people: the terminal, the HTML page, charts, and exports for other viewers."""
