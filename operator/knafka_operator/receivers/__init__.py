"""Receivers: their contract, the way to them, the event types that they report."""
