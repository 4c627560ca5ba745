"""What is declared, as values: resources, conditions, settings."""
