"""CloudEvents and their bindings to HTTP, JSON and Kafka. What is where: README.md."""
