"""Clients: IO, thin, each behind a Protocol of `knafka.ports`; nothing here decides anything.

What is where: README.md.
"""
