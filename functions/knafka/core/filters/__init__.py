"""Filters: how they are declared, and which events they match. What is where: README.md."""
