"""The jobs on Spark; `python -m knafka_jobs` runs them. Dead letters: compact, report, replay,
purge. Sensors: backtest.

    options.py   what each command can be asked for, declared once; needs no Spark
    commands.py  each command: options in, a document for JSON out
    compact/     dead letters from their topics into the tables
    report/      what failed, as a document and as a page
    replay/      failed events sent again to the Trigger that failed them, or forgotten
    lookup/      what the tables have, told in a moment: without Spark, by Delta's files
    backtest/    what a Sensor would have fired for events of the past
    io/          Spark's session, the tables (Delta) and Kafka
    schema.py    the tables' columns
    selecting.py which failures are meant, said once for Spark and for `lookup`
    positions.py rows of `records` by position, from few files
    marks.py     whose events the records in replay topics are
    topics.py    topics and offsets, as values

In each feature `plan.py` is pure (values and DataFrames in and out) and `run.py` does the IO. The
features don't import each other; `pyproject.toml` holds that.
"""
