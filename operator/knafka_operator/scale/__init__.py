"""How many drains each Trigger has, and the clients of Kafka clusters that it asks."""
