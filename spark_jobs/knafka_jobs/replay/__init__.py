"""Replays and purges of failed events."""
