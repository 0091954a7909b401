"""Attacks on what receives: each test attacks as somebody would; docs/explanation/security.md lists them."""
