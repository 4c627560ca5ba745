"""Compaction: copies dead letters from their topics into the tables, each once."""
