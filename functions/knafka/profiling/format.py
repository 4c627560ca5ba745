"""The format of profiles: pprof's gzipped protocol buffer, written by hand.

See github.com/google/pprof/blob/main/proto/profile.proto; the numbers of its fields are here. No
library is used: those for Python that write it are unmaintained, and the format is five small
messages.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

VARINT: Final = 0
"""Protobuf's wire type of numbers."""
BYTES: Final = 2
"""Protobuf's wire type of everything that begins with its length: bytes, strings, embedded messages
and packed numbers."""


class Frame(NamedTuple):
    """One call on a stack."""

    function: str
    file: str
    """Empty if the function is in no source file."""
    line: int
    """Number of the line that is executed; 0: not known."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """Kind and unit of a sample's value."""

    type: str
    """Such as "cpu"."""
    unit: str
    """Such as "nanoseconds"."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile: values by stack."""

    types: Sequence[ValueType]
    """Kinds and units of the values that each stack has."""
    samples: Mapping[tuple[Frame, ...], Sequence[int]]
    """One value per type, by stack; the innermost frame of a stack is the first."""
    period_type: ValueType
    """Kind and unit of `period`."""
    period: int
    """The amount of `period_type` between two samples, in its unit; 1: everything is counted."""
    default: str
    """`ValueType.type` of the values that viewers show first."""
    time: float = 0.0
    """Time at which the profile began, in seconds since the Unix epoch."""
    duration: float = 0.0
    """Seconds that the profile covers."""
    comments: Sequence[str] = ()
    """Lines that viewers show with the profile."""


def encode(profile: Profile) -> bytes:
    """Encode a profile in pprof's format, and compress it by gzip."""
    return gzip.compress(_Encoder().encode_profile(profile), compresslevel=6)


class _Encoder:
    """Encodes one profile as messages of `profile.proto`, in which strings, functions and locations
    are tables. Their entries are numbered in the order in which they are first used."""

    def __init__(self) -> None:
        """Begin with empty tables."""
        self._strings: dict[str, int] = {"": 0}
        """Number of each string: its index in the profile's table. The empty one must be 0."""
        self._functions: dict[tuple[str, str], int] = {}
        """Number of each function, by name and file; from 1 on."""
        self._locations: dict[Frame, int] = {}
        """Number of each location, a line of a function; from 1 on."""

    def encode_profile(self, profile: Profile) -> bytes:
        """Encode a whole profile: the message `Profile`."""
        # The order matters: encoding the samples fills the table of locations, encoding the
        # locations that of functions, and encoding anything that of strings. The numbers are the
        # fields of `Profile`.
        parts = [
            _bytes_field(1, self._encode_value_type(value_type)) for value_type in profile.types
        ]
        parts += [
            _bytes_field(2, self._encode_sample(stack, values))
            for stack, values in profile.samples.items()
        ]
        parts += [
            _bytes_field(4, self._encode_location(number, frame))
            for frame, number in self._locations.items()
        ]
        parts += [
            _bytes_field(5, self._encode_function(number, name, file))
            for (name, file), number in self._functions.items()
        ]
        parts.append(_number_field(9, int(profile.time * 1e9)))
        parts.append(_number_field(10, int(profile.duration * 1e9)))
        parts.append(_bytes_field(11, self._encode_value_type(profile.period_type)))
        parts.append(_number_field(12, profile.period))
        parts += [_number_field(13, self._string_number(comment)) for comment in profile.comments]
        parts.append(_number_field(14, self._string_number(profile.default)))
        parts += [_bytes_field(6, string.encode("utf-8", "replace")) for string in self._strings]
        return b"".join(parts)

    def _encode_value_type(self, value_type: ValueType) -> bytes:
        """Encode the type and the unit of a profile's values: the message `ValueType`."""
        # `type` (1) and `unit` (2).
        return _number_field(1, self._string_number(value_type.type)) + _number_field(
            2, self._string_number(value_type.unit)
        )

    def _encode_sample(self, stack: Iterable[Frame], values: Iterable[int]) -> bytes:
        """Encode the values of one stack: the message `Sample`."""
        locations = [self._locations.setdefault(frame, len(self._locations) + 1) for frame in stack]
        # `location_id` (1) and `value` (2).
        return _packed_field(1, locations) + _packed_field(2, values)

    def _encode_location(self, number: int, frame: Frame) -> bytes:
        """Encode a line of a function: the message `Location` with this number as its id. A
        function that has no number yet gets one."""
        name_and_file = frame.function, frame.file
        function_number = self._functions.setdefault(name_and_file, len(self._functions) + 1)
        # The message `Line`: `function_id` (1) and `line` (2).
        line = _number_field(1, function_number) + _number_field(2, frame.line)
        # `id` (1) and `line` (4).
        return _number_field(1, number) + _bytes_field(4, line)

    def _encode_function(self, number: int, name: str, file: str) -> bytes:
        """Encode a function: the message `Function` with this number as its id. Its name stands in
        both `name` (2) and `system_name` (3), as Python has only one name for a function."""
        name_number, file_number = self._string_number(name), self._string_number(file)
        # `id` (1), `name` (2), `system_name` (3), `filename` (4).
        return (
            _number_field(1, number)
            + _number_field(2, name_number)
            + _number_field(3, name_number)
            + _number_field(4, file_number)
        )

    def _string_number(self, text: str) -> int:
        """Return the number of a string in the profile's table of strings; a new string is added
        to the table."""
        return self._strings.setdefault(text, len(self._strings))


def _encode_varint(value: int) -> bytes:
    """Encode a number, 0 or more, as a protobuf varint: seven bits per byte, the lowest first."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _number_field(field: int, value: int) -> bytes:
    """Encode a field that holds a number; `field` is its number in the message. A negative `value`
    counts as 0."""
    return _encode_varint(field << 3 | VARINT) + _encode_varint(max(0, value))


def _bytes_field(field: int, content: bytes) -> bytes:
    """Encode a field that holds bytes or an embedded message; `field` is its number in the
    message."""
    return _encode_varint(field << 3 | BYTES) + _encode_varint(len(content)) + content


def _packed_field(field: int, values: Iterable[int]) -> bytes:
    """Encode a field that holds several numbers as one sequence of varints; `field` is its number
    in the message. A negative value counts as 0."""
    return _bytes_field(field, b"".join(_encode_varint(max(0, value)) for value in values))
