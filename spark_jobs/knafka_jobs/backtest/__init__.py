"""Backtests: what a Sensor would have fired for the events of a topic or an archive."""
