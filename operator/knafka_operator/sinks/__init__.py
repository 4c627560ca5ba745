"""KafkaSinks: receives events at an address and writes them to a user's topic. README.md lists the
modules."""
