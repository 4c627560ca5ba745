"""The fingerprint of an error: its text without the parts that differ each time.

    "no row 4711 for 10.0.3.17:8080\\n  at ..." --fingerprint--> "no row <n> for <address>"

Failures with one fingerprint are one group of a report. A fingerprint is the first line that has a
letter or a digit, with addresses, UUIDs, ids and numbers replaced by marks such as `<n>`; a status
code stays, as it says what failed. The rules are regular expressions that Python and Java read
alike, so Spark needs no Python for them. Pure.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

LINE_CHARACTERS: Final = 400
"""Characters of the error's line that the fingerprint is made from; its end is left out."""

FINGERPRINT_CHARACTERS: Final = 160
"""Largest number of characters of a fingerprint."""

_FIRST_LINE: Final = r"[^\r\n]*[^\s!-/:-@\[-`{-~][^\r\n]*"
"""Matches the first line that has a letter or a digit."""

_WORD_START: Final = r"(?<![0-9A-Za-z])"
"""Matches where no letter or digit stands before."""
_WORD_END: Final = r"(?![0-9A-Za-z])"
"""Matches where no letter or digit follows."""
_HEX: Final = "[0-9A-Fa-f]"
"""Matches a hexadecimal digit."""
_OCTET: Final = "[0-9]{1,3}"
"""Matches a part of an IPv4 address."""

_REASONS: Final = "|".join(
    f"{status.value} {re.escape(status.phrase)}" for status in HTTPStatus if status.phrase
)
"""Matches a status code with its reason phrase."""
_STATUS_PREFIXES: Final = "|".join(
    f"(?<={word}{between})"
    for word in ("HTTP", "HTTP/[12]", r"HTTP/1\.[01]", "status", "status code", "code")
    for between in (" ", ": ", "=")
)
"""Lookbehinds for the words that may stand before a status code."""
_STATUS: Final = (
    rf"(?i:{_REASONS}){_WORD_END}|(?i:{_STATUS_PREFIXES})[1-5][0-9]{{2}}(?![.,:]?[0-9])"
)
"""Matches an HTTP status code, which stays: one with its reason phrase (`404 Not Found`) or after a
word such as `status`."""

RULES: Final = (
    (r"[\x00-\x20\x7f]+", " "),
    (rf"{_WORD_START}{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}{_WORD_END}", "<uuid>"),
    (
        rf"{_WORD_START}[0-9A-Za-z._%+-]{{1,64}}@[0-9A-Za-z-]{{1,63}}(?:\.[0-9A-Za-z-]{{1,63}})+",
        "<address>",
    ),
    (rf"{_WORD_START}{_OCTET}(?:\.{_OCTET}){{3}}(?::[0-9]{{1,5}})?{_WORD_END}", "<address>"),
    # IPv6, with three colons or more: times have two.
    (
        rf"\[?{_WORD_START}{_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{3,7}}{_WORD_END}\]?(?::[0-9]{{1,5}})?",
        "<address>",
    ),
    (rf"{_WORD_START}0[xX]{_HEX}+{_WORD_END}", "<id>"),
    # The suffix that Kubernetes adds to a Deployment's name for its pods.
    (rf"-(?=[a-z]*[0-9])[0-9b-z]{{8,10}}-[0-9b-z]{{5}}{_WORD_END}", "-<id>"),
    # Hexadecimal from eight digits on, anything from sixteen, if there is a number in it.
    (rf"{_WORD_START}(?=[A-Fa-f]*[0-9]){_HEX}{{8,}}{_WORD_END}", "<id>"),
    (rf"{_WORD_START}(?=[A-Za-z]*[0-9])[0-9A-Za-z]{{16,}}{_WORD_END}", "<id>"),
    (rf"(?<![0-9])(?!{_STATUS})[0-9]+(?:[.,:][0-9]+)*", "<n>"),
)
"""Patterns and the mark that replaces each of them, applied in this order."""


def fingerprint(error: str | None) -> str:
    """Return the fingerprint of an error's text; empty if the text is None or has no letter or
    digit."""
    first_line = re.search(_FIRST_LINE, error or "", re.ASCII)
    text = first_line[0][:LINE_CHARACTERS] if first_line else ""
    for pattern, mark in RULES:
        text = re.sub(pattern, mark, text, flags=re.ASCII)
    return text.strip(" ")[:FINGERPRINT_CHARACTERS]


def fingerprint_of(error_data: Column) -> Column:
    """Return a column with the `fingerprint` of each error in the column `error_data`, which has
    values of `knativeerrordata`: base64, or else plain text."""
    # Imported here, so that the report's document, which uses a limit of this module, can be read
    # without Spark, as in the console.
    from pyspark.sql import functions as F

    decoded = F.make_valid_utf8(F.try_to_binary(error_data, F.lit("base64")).cast("string"))
    text = F.coalesce(decoded, error_data, F.lit(""))
    text = F.substring(F.regexp_extract(text, _FIRST_LINE, 0), 1, LINE_CHARACTERS)
    for pattern, mark in RULES:
        text = F.regexp_replace(text, pattern, mark)
    return F.substring(F.trim(text), 1, FINGERPRINT_CHARACTERS)
