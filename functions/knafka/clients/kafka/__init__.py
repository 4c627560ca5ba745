"""Kafka clients behind the ports. What is where: README.md."""
