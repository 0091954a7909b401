"""The pages: one HTML file each, which needs no network."""
