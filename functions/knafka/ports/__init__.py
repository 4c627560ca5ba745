"""Ports: Protocols of the operations on Kafka, subscribers and issuers of tokens, without any IO.

Every plane may import them. What is where: README.md.
"""
