"""Lookups: quick answers from the tables' Delta files, without Spark or Java."""
