"""HTTP that is broken, odd or abusive, and what a receiver answers: one table for the protocol
in memory and for the running process (issue 3, item 5)."""

from __future__ import annotations

from collections.abc import Sequence

from support.receiver_requests import MINIMAL

EVENT = MINIMAL.wire()
HEAD = EVENT.removesuffix(b"content-length: 0\r\n\r\n")
"""The head of a valid event, to be ended."""
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"

BROKEN: Sequence[tuple[str, bytes]] = (
    ("garbage", b"\x00\x01\x02\xff\xfe garbage\r\n\r\n"),
    ("text", b"hello there\r\n\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40)),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("an unknown method", b"BREW /ns/broker HTTP/1.1\r\n\r\n"),
    ("an unknown version", b"POST /ns/broker HTTP/9.9\r\n\r\n"),
    ("no version's number", b"POST /ns/broker HTTP/x\r\n\r\n"),
    ("another protocol", b"POST /ns/broker RTSP/1.0\r\n\r\n"),
    ("a space in the target", b"POST /ns broker HTTP/1.1\r\n\r\n"),
    ("bytes in the target", b"POST /ns/br\xc3\xb6ker HTTP/1.1\r\n\r\n"),
    ("no target", b"POST  HTTP/1.1\r\n\r\n"),
    ("bare line feeds", b"POST /ns/broker HTTP/1.1\nhost: x\n\n"),
    ("a header without a colon", HEAD + b"nonsense\r\n\r\n"),
    ("a header without a name", HEAD + b": x\r\n\r\n"),
    ("a space before the colon", HEAD + b"x : y\r\n\r\n"),
    ("a space in a name", HEAD + b"x y: z\r\n\r\n"),
    ("a byte in a name", HEAD + b"\xff: z\r\n\r\n"),
    ("a folded header", HEAD + b"x: y\r\n z\r\n\r\n"),
    ("a NUL in a header", HEAD + b"x: y\x00z\r\n\r\n"),
    ("a carriage return in a header", HEAD + b"x: y\rz\r\n\r\n"),
    ("a length that is no number", HEAD + b"content-length: ten\r\n\r\n"),
    ("a negative length", HEAD + b"content-length: -1\r\n\r\n"),
    ("a length beyond all numbers", HEAD + b"content-length: " + b"9" * 400 + b"\r\n\r\n"),
    ("two lengths", HEAD + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab"),
    ("two equal lengths", HEAD + b"content-length: 1\r\ncontent-length: 1\r\n\r\na"),
    ("a length and chunks", CHUNKED[:-2] + b"content-length: 1\r\n\r\na"),
    ("chunked twice", CHUNKED[:-2] + b"transfer-encoding: identity\r\n\r\n"),
    ("a chunk without a size", CHUNKED + b"\r\nx\r\n"),
    ("a chunk of no number", CHUNKED + b"xyz\r\n"),
    ("a chunk beyond all numbers", CHUNKED + b"f" * 40 + b"\r\n"),
    ("a chunk that is longer than it says", CHUNKED + b"1\r\nabc\r\n0\r\n\r\n"),
)
"""Each is answered 400 and the connection is closed."""
