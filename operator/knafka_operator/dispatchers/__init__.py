"""Dispatchers, own and shared: who is delivered where, and what is said of it."""
