"""Backtests: compute the firings that a Sensor would have made for the events of a topic or an
archive."""
