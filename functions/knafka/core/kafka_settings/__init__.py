"""Settings of Kafka clients and credentials for Kafka. What is where: README.md."""
