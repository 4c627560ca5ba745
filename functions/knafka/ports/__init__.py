"""Ports: what is asked of Kafka, subscribers and issuers of tokens, as Protocols without any IO.

Every plane may import them. What is where: README.md.
"""
