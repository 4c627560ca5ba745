"""Receivers: their contracts, the Services that lead to them, and the event types that they
report."""
