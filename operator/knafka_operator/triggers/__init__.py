"""Triggers; Subscriptions and KafkaSources are reconciled as such."""
