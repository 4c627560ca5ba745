"""The jobs on Spark; `python -m knafka_jobs` runs them. Dead letters: compact, report, replay,
purge. Sensors: backtest.

README.md beside this file describes the packages, and where new code belongs. In each feature the
plan module is pure (values and DataFrames in and out) and the run module does the IO. The features
don't import each other; `pyproject.toml` holds that.
"""
