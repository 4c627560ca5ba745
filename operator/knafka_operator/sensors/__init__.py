"""Sensors: their topics, functions, Triggers and status."""
