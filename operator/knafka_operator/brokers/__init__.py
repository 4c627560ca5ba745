"""Brokers."""
