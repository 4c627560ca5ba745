"""Sending: one attempt to send one event, with its reply and its dead letter."""
