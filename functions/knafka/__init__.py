"""Knafka: a Kafka-backed Knative Broker made of serverless functions."""
