"""Lookup: what the tables have, told in a moment by Delta's files, without Spark or Java."""
