"""Requests to Kafka about topics, groups and offsets. What is where: README.md."""
