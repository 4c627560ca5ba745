"""KafkaSources: somebody's topics, delivered to a sink as a Trigger's events are.

decide     its credentials, its conditions and its status, in upstream's words
observe    its Secrets, its Kafka and its topics
admission  what is filled in and what is refused
kind       how one is reconciled

As declared, and read as a Trigger: `model.sources`.
"""
