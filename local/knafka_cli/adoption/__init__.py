"""Taking over what eventing-kafka-broker serves, and giving it back."""
