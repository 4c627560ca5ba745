"""Requests to a receiver as one table, valid and malformed, for every way in (issue 3, item 5).

The tests of the ingest handler, the ASGI function, the protocol and the running process share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from knafka.core.contract import Ingress, Kafka
from knafka.core.events.event import REQUIRED

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

PATH = b"/ns/broker"
STRUCTURED = b"application/cloudevents+json"


def ingress(bootstrap_servers: str = "nowhere:9092", topic: str = "events", **more: Any) -> Ingress:
    kafka = Kafka(bootstrap_servers=bootstrap_servers)
    return Ingress(namespace="ns", broker="broker", topic=topic, kafka=kafka, **more)


def channel(name: str, topic: str, **more: Any) -> Ingress:
    """A KafkaChannel of the namespace shop, with the host that is its own (KN-CHN-11)."""
    hosts = (f"{name}-kn-channel.shop.svc.cluster.local",)
    kafka = Kafka(bootstrap_servers="not-looked-at:9092")
    return Ingress(
        namespace="shop", broker=name, kind="KafkaChannel", hosts=hosts, topic=topic, kafka=kafka,
        **more,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """What an accepted event lies in Kafka as (CE-K1)."""

    key: bytes | None
    headers: list[tuple[str, bytes]]
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the Broker's path, and what must become of it."""

    id: str
    status: int
    headers: Headers
    body: bytes = b""
    stored: Stored | None = None

    def wire(self, *, method: bytes = b"POST", path: bytes = PATH) -> bytes:
        """As HTTP/1.1."""
        lines = [
            b"%b %b HTTP/1.1" % (method, path),
            b"host: x",
            *(b"%b: %b" % header for header in self.headers),
            b"content-length: %d" % len(self.body),
        ]
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


def attributes(**changed: bytes | str | None) -> Headers:
    """Headers of a small valid event, changed; None leaves one out."""
    defaults: dict[str, bytes | str | None] = {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
    }
    return tuple(
        (b"ce-" + name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in {**defaults, **changed}.items()
        if value is not None
    )


def _stored(
    *more: tuple[str, str | bytes],
    key: bytes | None = None,
    value: bytes | None = None,
    version: bytes = b"1.0",
) -> Stored:
    headers = [
        ("ce_specversion", version),
        ("ce_id", b"1"),
        ("ce_source", b"/s"),
        ("ce_type", b"t"),
    ]
    headers += [(name, x if isinstance(x, bytes) else x.encode()) for name, x in more]
    return Stored(key, headers, value)


def _binary(what: str, /, **changed: bytes | str | None) -> Request:
    return Request(what, 400, attributes(**changed))


def _json(what: str, body: bytes | str) -> Request:
    body = body if isinstance(body, bytes) else body.encode()
    return Request(what, 400, ((b"content-type", STRUCTURED),), body)


_CORE = '"specversion":"1.0","id":"1","source":"/s","type":"t"'

MINIMAL = Request("minimal", 202, attributes(), stored=_stored())

VALID: Sequence[Request] = (
    MINIMAL,
    Request("an empty partition key is none (CE-K5)", 202, attributes(partitionkey="", subject="s"),
            stored=_stored(("ce_partitionkey", ""), ("ce_subject", "s"), key=b"s")),
    Request("key from the subject", 202, attributes(subject="s/1"),
            stored=_stored(("ce_subject", "s/1"), key=b"s/1")),
    Request("key from the partition key first (CE-K4)", 202,
            attributes(subject="s", partitionkey="p"),
            stored=_stored(("ce_subject", "s"), ("ce_partitionkey", "p"), key=b"p")),
    Request("data byte for byte (CE-H10)", 202,
            (*attributes(), (b"content-type", b"application/json")),
            b'{ "b":1, "a":NaN,\t"n":12345678901234567890 }\n\x00\xff',
            _stored(("content-type", "application/json"),
                    value=b'{ "b":1, "a":NaN,\t"n":12345678901234567890 }\n\x00\xff')),
    Request("data without a type (CE-H3)", 202, attributes(), b"x", _stored(value=b"x")),
    Request("version 0.3 is kept (KN-DP-14)", 202, attributes(specversion="0.3"),
            stored=_stored(version=b"0.3")),
    Request("percent-encoding is undone once (CE-H6)", 202,
            attributes(subject="Euro%20%e2%82%ac%20%F0%9F%98%80%2525"),
            stored=_stored(("ce_subject", "Euro € 😀%25"), key="Euro € 😀%25".encode())),
    Request("quotes are undone (CE-H6)", 202, attributes(subject=rb'"a \"b\" c"'),
            stored=_stored(("ce_subject", 'a "b" c'), key=b'a "b" c')),
    Request("a % of its own (CE-H7)", 202, attributes(subject="100%"),
            stored=_stored(("ce_subject", "100%"), key=b"100%")),
    Request("raw UTF-8 (CE-H7)", 202, attributes(subject="ü"),
            stored=_stored(("ce_subject", "ü"), key="ü".encode())),
    Request("raw bytes that are not UTF-8 are ISO-8859-1 (CE-H7)", 202,
            attributes(subject=b"\xe9"), stored=_stored(("ce_subject", "é"), key="é".encode())),
    *(
        Request(f"dataschema {each}", 202, attributes(dataschema=each),
                stored=_stored(("ce_dataschema", each)))
        for each in ("https://x/a?b=c#d", "urn:x:1", "HTTP://X", "https://x/a%20b", "https://x/é")
    ),
    Request("an extension of 0.3 that 1.0 has another rule for", 202,
            attributes(specversion="0.3", dataschema="any"),
            stored=_stored(("ce_dataschema", "any"), version=b"0.3")),
    Request("schemaurl of 0.3 is a reference", 202,
            attributes(specversion="0.3", schemaurl="/s"),
            stored=_stored(("ce_schemaurl", "/s"), version=b"0.3")),
    Request("an empty extension", 202, attributes(ext=""), stored=_stored(("ce_ext", ""))),
    Request("names in any case (CE-H4)", 202,
            ((b"CE-SpecVersion", b"1.0"), (b"Ce-Id", b"1"), (b"ce-SOURCE", b"/s"),
             (b"ce-type", b"t"), (b"Content-Type", b"text/plain"), (b"cE-x9", b"y")),
            b"d", _stored(("content-type", "text/plain"), ("ce_x9", "y"), value=b"d")),
    Request("trace headers pass beside it (KN-DP-10)", 202,
            (*attributes(), (b"traceparent", b"00-1-2-01"), (b"accept", b"*/*")),
            stored=_stored(("traceparent", "00-1-2-01"))),
    Request("another event format beside attributes is data (CE-H2)", 202,
            (*attributes(), (b"content-type", b"application/cloudevents+avro")), b"\x00",
            _stored(("content-type", "application/cloudevents+avro"), value=b"\x00")),
    Request("structured", 202, ((b"content-type", STRUCTURED),),
            ("{" + _CORE + ',"data": {"b":1.0,"a": NaN } }').encode(),
            _stored(("content-type", "application/json"), value=b'{"b":1.0,"a": NaN }')),
    Request("structured with parameters, upper case (CE-H1)", 202,
            ((b"Content-Type", b"Application/CloudEvents+JSON; charset=UTF-8"),),
            ("{" + _CORE + "}").encode(), _stored()),
    Request("structured 0.3", 202, ((b"content-type", STRUCTURED),),
            b'{"specversion":"0.3","id":"1","source":"/s","type":"t","data":"x",'
            b'"datacontenttype":"text/plain"}',
            _stored(("content-type", "text/plain"), value=b"x", version=b"0.3")),
    Request("structured base64 without a type (CE-H9)", 202, ((b"content-type", STRUCTURED),),
            ("{" + _CORE + ',"data_base64":"AP8="}').encode(), _stored(value=b"\x00\xff")),
    Request("structured extensions and null (CE-H9)", 202, ((b"content-type", STRUCTURED),),
            ("{" + _CORE + ',"n":7,"b":true,"u":null,"partitionkey":"p"}').encode(),
            _stored(("ce_n", "7"), ("ce_b", "true"), ("ce_partitionkey", "p"), key=b"p")),
    Request("structured wins over headers (CE-H8)", 202,
            (*attributes(id="other", subject="x"), (b"content-type", STRUCTURED)),
            ("{" + _CORE + "}").encode(), _stored()),
)  # fmt: skip

UNSUPPORTED: Sequence[Request] = (
    Request("a batch of another format", 415,
            ((b"content-type", b"application/cloudevents-batch+avro"),), b"[]"),
    Request("a batch that is no array", 400,
            ((b"content-type", b"application/cloudevents-batch+json"),), b"{}"),
    Request("a batch with an event that is not valid", 400,
            ((b"content-type", b"application/cloudevents-batch+json"),), b"[{}]"),
    Request("an event format that is not read", 415,
            ((b"content-type", b"application/cloudevents+avro"),), b"\x00"),
)  # fmt: skip

MALFORMED: Sequence[Request] = (
    Request("nothing at all", 400, ()),
    Request("plain JSON", 400, ((b"content-type", b"application/json"),), b"{}"),
    *(_binary(f"without {name}", **{name: None}) for name in REQUIRED),
    *(_binary(f"empty {name}", **{name: ""}) for name in REQUIRED),
    *(_binary(f"specversion {version}", specversion=version) for version in ("2.0", "1", "x")),
    *(_binary(f"source {each}", source=each) for each in ("a b%20", "<x>", "%", "a|b", "%zz")),
    *(
        _binary(f"time {time}", time=time)
        for time in ("", "yesterday", "2024-13-01T00:00:00Z", "2023-02-29T00:00:00Z", "2024-01-01",
                     "2024-01-01 00:00:00Z", "2024-01-01T00:00:00", "2024-01-01T24:00:00Z",
                     "%D9%A2024-01-01T00:00:00Z")
    ),
    _binary("an empty subject", subject=""),
    _binary("a quoted empty subject", subject='""'),
    *(
        _binary(f"dataschema {each!r}", dataschema=each)
        for each in ("", "not%20a%20uri", "not a uri", "/relative", "schema.json", "1a:b", "a:%zz")
    ),
    *(
        _binary(f"schemaurl {each!r} of 0.3", specversion="0.3", schemaurl=each)
        for each in ("", "not a uri")
    ),
    _binary("a header for the content type", datacontenttype="text/plain"),
    _binary("a header for data", data="x"),
    Request("a nameless attribute", 400, (*attributes(), (b"ce-", b"x"))),
    Request("a name with a dash", 400, (*attributes(), (b"ce-a-b", b"x"))),
    Request("a name with an underscore", 400, (*attributes(), (b"ce-a_b", b"x"))),
    Request("an attribute twice", 400, (*attributes(), (b"CE-Id", b"1"))),
    Request("content-type twice", 400,
            (*attributes(), (b"content-type", b"text/plain"), (b"Content-Type", b"text/plain"))),
    Request("a content type that is none", 400, (*attributes(), (b"content-type", b"\xff"))),
    _binary("overlong UTF-8", subject="%C0%A0"),
    _binary("a surrogate", subject="%ED%A0%80"),
    _binary("half a character", subject="%E2%82"),
    _binary("raw bytes and half a character", subject=b"\xff%E2"),
    _binary("an encoded NUL", subject="a%00b"),
    _binary("an encoded line break", id="1%0D%0Ax-injected: 1"),
    _binary("a non-character", subject="%EF%BF%BE"),
    _binary("a control of C1", subject="%C2%85"),
    _json("structured: empty", b""),
    _json("structured: blank", b" \n"),
    _json("structured: no JSON", b"\x00\xff"),
    _json("structured: truncated", "{" + _CORE),
    _json("structured: followed", "{" + _CORE + "}{}"),
    _json("structured: a list", "[{" + _CORE + "}]"),
    _json("structured: text", '"x"'),
    _json("structured: a number", "1"),
    _json("structured: null", "null"),
    _json("structured: nothing in it", "{}"),
    _json("structured: not UTF-8", b'{"specversion":"1.0","id":"\xff","source":"/s","type":"t"}'),
    _json("structured: with a BOM", b"\xef\xbb\xbf{" + _CORE.encode() + b"}"),
    _json("structured: unquoted", "{id:1}"),
    _json("structured: an id of a number", ("{" + _CORE + "}").replace('"1"', "1")),
    _json("structured: an object as an attribute", "{" + _CORE + ',"x":{}}'),
    _json("structured: a list as an attribute", "{" + _CORE + ',"x":[]}'),
    _json("structured: a float as an attribute", "{" + _CORE + ',"x":1.5}'),
    _json("structured: NaN as an attribute", "{" + _CORE + ',"x":NaN}'),
    _json("structured: an upper-case name", "{" + _CORE + ',"Xy":"1"}'),
    _json("structured: a nameless attribute", "{" + _CORE + ',"":"1"}'),
    _json("structured: a surrogate in a name", "{" + _CORE + r',"\ud800":"1"}'),
    _json("structured: a surrogate in a value", "{" + _CORE + r',"x":"\ud800"}'),
    _json("structured: a control in a value", "{" + _CORE + r',"x":"\u0000"}'),
    _json("structured: a surrogate in the data's text",
          "{" + _CORE + r',"datacontenttype":"text/plain","data":"\ud800"}'),
    _json("structured: a member twice", "{" + _CORE + ',"id":"2"}'),
    _json("structured: data twice", "{" + _CORE + ',"data":1,"data_base64":"AA=="}'),
    _json("structured: bad base64", "{" + _CORE + ',"data_base64":"A"}'),
    _json("structured: base64 of another alphabet", "{" + _CORE + ',"data_base64":"_-8="}'),
    _json("structured: base64 that is a number", "{" + _CORE + ',"data_base64":1}'),
    _json("structured: deep", "{" + _CORE + ',"data":' + "[" * 100_000 + "]" * 100_000 + "}"),
    _json("structured: version 2", '{"specversion":"2.0","id":"1","source":"/s","type":"t"}'),
    _json("structured: empty id", '{"specversion":"1.0","id":"","source":"/s","type":"t"}'),
    _json("structured: an empty subject", "{" + _CORE + ',"subject":""}'),
    _json("structured: a dataschema that is no URI", "{" + _CORE + ',"dataschema":"not a uri"}'),
    _json("structured: an empty dataschema", "{" + _CORE + ',"dataschema":""}'),
    _json("structured: bad time", "{" + _CORE + ',"time":"now"}'),
    _json("structured: bad source", '{"specversion":"1.0","id":"1","source":"a b","type":"t"}'),
    _json("structured: a long integer for an id", ("{" + _CORE + "}").replace('"1"', "1" * 5000)),
)  # fmt: skip

EVERY: Sequence[Request] = (*VALID, *UNSUPPORTED, *MALFORMED)
