"""KafkaChannels and their Subscriptions."""
