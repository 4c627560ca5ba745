"""Replay and purge: what a person decides about failed events."""
