"""KafkaSources: somebody's topics, delivered to a sink. What is where: README.md."""
