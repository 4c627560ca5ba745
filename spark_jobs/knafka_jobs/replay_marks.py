"""Marks of replays: the header that names the replay and the failure of a replayed event.

    knafka-replay: REPLAY-ID/FAILURE-ID

Pure: DataFrames in and out.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from knafka.core.dead_letter import REPLAY


def select_marked(kafka: DataFrame) -> DataFrame:
    """Return the records that replays have sent, known by the header `REPLAY`. The header's
    `replay_id` and `failure_id` are further columns.

    `kafka` has the columns of Spark's Kafka source, with headers.
    """
    marks = F.filter("headers", lambda header: header["key"] == REPLAY)
    text = F.element_at(marks, 1)["value"].cast("string")
    return (
        kafka.where(F.size(marks) > 0)
        .withColumn("mark", text)
        # The failure's id follows the last slash; the replay's id is all before that slash.
        .withColumn("failure_id", F.substring_index("mark", "/", -1))
        .withColumn(
            "replay_id", F.expr("substring(mark, 1, length(mark) - length(failure_id) - 1)")
        )
        .where(F.col("mark").contains("/"))
        .drop("mark")
    )
