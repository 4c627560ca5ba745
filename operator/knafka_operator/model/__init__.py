"""Model: declared resources, conditions and settings, as values."""
