"""Dispatchers, own and shared: which of them delivers a Trigger, and the conditions about its
delivery."""
