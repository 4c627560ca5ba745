"""Observe, decide and act for each kind of object."""
