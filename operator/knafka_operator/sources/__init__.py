"""KafkaSources: delivers records of users' topics to a sink. README.md lists the modules."""
