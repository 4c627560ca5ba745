"""Mutation testing of what is pure: `make mutants` (docs/design/tests.md, docs/decisions/0032)."""
