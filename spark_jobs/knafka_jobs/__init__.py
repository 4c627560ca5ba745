"""The dead-letter jobs: compact, report, replay, purge. `python -m knafka_jobs` runs them."""
