"""The sensor function: conditions over several events."""
