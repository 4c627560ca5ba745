"""Fingerprints: errors that differ in numbers, ids and addresses alone are one; others are not."""

from __future__ import annotations

from base64 import b64encode
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from knafka_jobs.fingerprint import FINGERPRINT_CHARACTERS, fingerprint, fingerprint_of

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # py4j leaves sockets open

LETTERS = "ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ"
"""Of which no hexadecimal id can be."""

ADDRESSES = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.builds("{}:{}".format, st.ip_addresses(v=4), st.integers(1, 65535)),
    st.ip_addresses(v=6).map(lambda each: each.exploded),
    st.emails(domains=st.just("example.com")).filter(lambda text: text.split("@")[0].isalnum()),
)
NUMBERS = st.one_of(
    st.integers(min_value=0, max_value=9_999_999).map(str),
    st.decimals(0, 10_000, places=3).map(str),
    st.times().map(lambda each: each.strftime("%H:%M:%S.%f")),
)
IDS = st.one_of(
    st.binary(min_size=8, max_size=32).map(bytes.hex).filter(lambda text: not text.isalpha()),
    st.integers(2**20, 2**64).map(hex),
)
VARYING = {"address": ADDRESSES, "n": NUMBERS, "uuid": st.uuids().map(str), "id": IDS}
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)

EXAMPLES = {
    "NullPointer": "NullPointer",
    "db down": "db down",
    "": "",
    "\n\n  \r\n{\n": "",
    '{\n  "error": "order 4711 is locked"\n}': '"error": "order <n> is locked"',
    "row 12 of ana@example.com at 10.0.3.17:8080": "row <n> of <address> at <address>",
    "pod mail-5d9f8b7c6d-x2x4z is gone": "pod mail-<id> is gone",
    "OAuth2 token of 3f2504e0-4f89-11d3-9a0c-0305e82c3301": "OAuth<n> token of <uuid>",
    "2026-11-21T12:00:00.123Z\ttook  1,024.5 ms": "<n>-<n>-<n>T<n>Z took <n> ms",
    "Object@1a2b3c4d at 0x7fff5fbff8c8\n\tat Main.java:17": "Object@<id> at <id>",
    "can't reach [2001:db8::ff00:42:8329]:443": "can't reach <address>",
    "Größe überschritten: 17": "Größe überschritten: <n>",
    "500 Internal Server Error": "500 Internal Server Error",
    "HTTP/1.1 503 service unavailable after 7 s": "HTTP/<n> 503 service unavailable after <n> s",
    "Request failed with status code 404": "Request failed with status code 404",
    "status: 429, retry in 30": "status: 429, retry in <n>",
    "status 5000 of 200 OK rows, 1500 Internal": "status <n> of 200 OK rows, <n> Internal",
    "exit code 137": "exit code 137",
    "took 500 Internal": "took <n> Internal",
}


@pytest.mark.parametrize(("error", "wanted"), EXAMPLES.items())
def test_what_an_error_says_stays_and_what_differs_each_time_goes(error: str, wanted: str) -> None:
    assert fingerprint(error) == wanted


@given(WORDS, WORDS, st.sampled_from(sorted(VARYING)), st.data())
def test_errors_that_differ_in_what_varies_are_one(
    before: str, after: str, kind: str, data: st.DataObject
) -> None:
    one, other = (data.draw(VARYING[kind]) for _ in range(2))
    said = fingerprint(f"{before} {one} {after}\nat {one}")
    if kind in ("uuid", "address"):
        assert said == f"{before} <{kind}> {after}"
    if kind != "id" or len(one) == len(other):
        assert said == fingerprint(f"{before} {other} {after}\nand {other} else")


@given(WORDS, WORDS)
def test_errors_that_say_something_else_are_two(one: str, other: str) -> None:
    assert (fingerprint(one) == fingerprint(other)) == (one == other)


@given(st.text())
def test_any_text_has_a_bounded_fingerprint_on_one_line_without_digits(error: str) -> None:
    said = fingerprint(error)
    assert len(said) <= FINGERPRINT_CHARACTERS
    assert not any(each in "0123456789\r\n\t" for each in said)


def test_spark_says_what_python_says(spark: SparkSession) -> None:
    texts = [*EXAMPLES, f"x{UUID(int=5)}y " * 30, "a" * 15 + "1", "\u2028line ÿ 7 \u0661"]
    rows: list[tuple[int, str | None]] = [
        (n, b64encode(text.encode()).decode()) for n, text in enumerate(texts)
    ]
    rows += [(len(texts), "no base64: 5"), (len(texts) + 1, None)]
    frame = spark.createDataFrame(rows, "n int, error string")
    found = frame.select(fingerprint_of(F.col("error")).alias("said")).collect()
    assert [row["said"] for row in found] == [
        *map(fingerprint, texts),
        fingerprint("no base64: 5"),
        "",
    ]
