"""Clients of the API server, for functions. What is where: README.md."""
