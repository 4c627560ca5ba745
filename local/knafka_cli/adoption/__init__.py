"""Taking Brokers over from eventing-kafka-broker, and giving them back."""
