"""Kafka: its clusters, topics, contracts and credentials."""
