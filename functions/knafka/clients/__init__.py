"""Clients: thin IO, each behind a Protocol of `knafka.ports`, without decisions of its own.

What is where: README.md.
"""
