"""Mutation testing of the pure code: `make mutants` (docs/design/tests.md, docs/decisions/0032)."""
