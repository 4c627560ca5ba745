"""Brokers: admission, decisions and reconciling."""
