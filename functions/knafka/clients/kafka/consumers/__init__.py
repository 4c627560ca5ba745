"""Consumers of Kafka behind the ports. What is where: README.md."""
