"""The installation: the operator's settings, and what it adds to functions."""
