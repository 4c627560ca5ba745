"""Tables that an older version made, brought to today's layout before anything reads them.

    layout 1 of `failures`    add `head`, keep the heads of the likely examples
    layout 2 of `failures`    give each its summary and days, and partition the table by `day`
    layout 3 of `failures`    add `trace`, which nothing says of the failures that are there
    layout 1 of `records`     fold what is left to fold, then partition the table by `day`
    layout 2 of `records`     add `trace`
    layout 4 of `failures`    mend times that can't be, and give each its summary anew
    layout 3 of `records`     mend times that can't be, after what is left is folded

Each step may be killed, and is repeated until the layouts are noted. A table is rewritten in one
commit; its old files go with the next VACUUM after a week.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from knafka_jobs.compact import plan
from knafka_jobs.compact.run import fold_all
from knafka_jobs.errors import JobError
from knafka_jobs.fingerprint import fingerprint_of
from knafka_jobs.io.delta import Tables, explained
from knafka_jobs.positions import bounds, within
from knafka_jobs.schema import LAYOUT


def upgrade(tables: Tables, progress: Callable[[str], None]) -> None:
    """Bring the tables to today's layout. Raises `JobError` if a newer version has made them."""
    found = {name: tables.layout(name) for name in LAYOUT if tables.exists(name)}
    for name, layout in found.items():
        if layout > LAYOUT[name]:
            raise JobError(
                f"{tables.path(name)} has layout {layout}, which a newer Knafka made: use that"
            )
    old = [name for name, layout in found.items() if layout < LAYOUT[name]]
    if not old:
        return
    with tables.locked(), explained(f"the tables in {tables.root} can't be upgraded"):
        for name in old:
            progress(f"{name} is brought to layout {LAYOUT[name]}")
        if "records" in found:
            tables.add_columns("records", "day", "trace")
        if "failures" in found:
            tables.add_columns("failures", "trace")
        if "failures" in found and not tables.is_by_day("failures"):
            _keep_heads(tables)
            _failures_by_day(tables)
        if "records" in found and not tables.is_by_day("records"):
            # What is folded later would be taken for part of the rewritten table, and left out.
            fold_all(tables)
            rows = tables.as_it_is("records").withColumn("day", F.to_date("appended"))
            tables.rewrite(rows, "records")
        if "records" in found:
            # As above: what is rewritten is not folded again.
            fold_all(tables)
            _mend_records(tables)
        if "failures" in found:
            _mend_failures(tables)
        for name in old:
            tables.set_layout(name)


def _mend_records(tables: Tables) -> None:
    """Earlier versions took any time that a record had, or its headers: no report could be made of
    one that is in no calendar."""
    appended = _possible("appended", F.current_timestamp())
    tables.correct(
        "records",
        ~(plan.is_possible(F.col("appended")) & plan.is_possible(F.col("first_attempt")))
        | ~plan.is_possible(F.col("last_attempt")),
        {
            "appended": appended,
            "day": F.to_date(appended),
            "first_attempt": _possible("first_attempt", appended),
            "last_attempt": _possible("last_attempt", appended),
        },
    )


def _mend_failures(tables: Tables) -> None:
    """See `_mend_records`. Summaries have status codes now, and are compared with new ones."""
    day = F.coalesce("day", F.current_date())
    first = _possible("first_failed", _possible("last_failed", day.cast("timestamp")))
    times = [F.col("first_failed"), F.col("last_failed")]
    times += [F.col(name).cast("timestamp") for name in ("first_day", "last_day")]
    is_wrong = F.exists("history", lambda each: ~plan.is_possible(each["at"]))
    for each in times:
        is_wrong |= ~plan.is_possible(each)
    tables.correct(
        "failures",
        is_wrong | (F.col("summary") != fingerprint_of(F.col("error"))),
        {
            "first_failed": first,
            "last_failed": _possible("last_failed", first),
            "history": F.transform(
                "history",
                lambda each: F.struct(
                    F.when(plan.is_possible(each["at"]), each["at"]).otherwise(first).alias("at"),
                    *(each[name].alias(name) for name in ("reason", "code", "attempts")),
                ),
            ),
            **{
                name: F.when(
                    plan.is_possible(F.col(name).cast("timestamp")), F.col(name)
                ).otherwise(day)
                for name in ("first_day", "last_day")
            },
            "summary": fingerprint_of(F.col("error")),
        },
    )


def _possible(name: str, otherwise: Column) -> Column:
    return F.when(plan.is_possible(F.col(name)), F.col(name)).otherwise(otherwise)


def _keep_heads(tables: Tables) -> None:
    if tables.layout("failures") > 1:
        return
    tables.add_columns("failures", "head")
    failures = tables.as_it_is("failures").transform(_with_summary)
    examples = failures.transform(plan.likely_examples).localCheckpoint()
    theirs = tables.read("records").where(within(bounds(examples)))
    tables.update(plan.heads(examples, theirs), "failures", plan.MERGE_ON, {"head": "more.head"})


def _with_summary(failures: DataFrame) -> DataFrame:
    return failures.withColumn("summary", fingerprint_of(F.col("error")))


def _failures_by_day(tables: Tables) -> None:
    """Of a failure without records the days are those on which it failed."""
    days = (
        tables.read("records")
        .groupBy("failure_id")
        .agg(F.min("appended").alias("first"), F.max("appended").alias("last"))
    )
    rows = (
        tables.as_it_is("failures")
        .join(days, "failure_id", "left")
        .transform(_with_summary)
        .withColumn("first_day", F.to_date(F.coalesce("first", "first_failed")))
        .withColumn("last_day", F.to_date(F.coalesce("last", "last_failed")))
        .withColumn("day", F.col("first_day"))
    )
    tables.rewrite(rows, "failures")
