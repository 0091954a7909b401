"""The web application, without a server."""
