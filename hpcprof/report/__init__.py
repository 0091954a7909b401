"""What people look at: the terminal, the HTML page, charts, and exports for other viewers."""
