"""Measures what a sender's token costs a receiver: a known one, a new one, and one with a wrong
signature.

Measures the CPU of `SenderCheck.admit`, which is all that a token adds to an event; it needs
neither network nor Kafka, so it runs in this process. Not here: an event without a token
(`receiving`, `beside`).
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from bench.one_ingest import EVENT_HEADERS
from bench.results import BEFORE, OURS, Results
from bench.targets import External
from bench.world import HERE, World
from knafka.clients.kubernetes.api_server_keys import JwkKey
from knafka.core.contract import Ingress, Kafka
from knafka.ports.signing_keys import SigningKey
from knafka.receiver.authentication import (
    MAX_SENDER_FAILURES_PER_SECOND,
    SenderCheck,
    TokenVerifier,
)

SEEN: Final = "a token seen before"
NEW_RS256: Final = "a new token, RS256"
NEW_ES256: Final = "a new token, ES256"
BAD: Final = "a signature that doesn't hold, RS256"
ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
AUDIENCE: Final = "eventing.knative.dev/broker/shop/default"
OFF: Final = "an event where nobody is asked"
PAIRS: Final = 30
LOOP: Final = 1000
"""Requests whose headers are made before the clock starts."""
BAD_TOKENS: Final = MAX_SENDER_FAILURES_PER_SECOND
"""As many bad tokens of one sender as the receiver verifies in a second."""

Headers = tuple[tuple[bytes, bytes], ...]


class _Keys:
    """An issuer's keys, in memory."""

    issuer = ISSUER
    generation = 1

    def __init__(self, keys: dict[str, SigningKey]) -> None:
        self.find = keys.get

    def request_read(self, issued: float) -> bool:
        return False


async def tokens_case(world: World, results: Results, externals: Sequence[External]) -> None:
    """Measure the CPU of each kind of token, in turns."""
    loops, few = int(world.sized(200, 20)), int(world.sized(1_000, 200))
    signing: dict[str, Any] = {
        "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
        "ES256": ec.generate_private_key(ec.SECP256R1()),
    }
    for _ in range(world.options.runs):
        check = _check(signing)
        seen = _token(signing, "RS256")
        check.admit(_with(seen))
        spent = sum(_seconds(check, [seen] * LOOP) for _ in range(loops))
        results.add(SEEN, OURS, cpu_us=spent * 1e6 / (loops * LOOP))
        for what, algorithm in ((NEW_RS256, "RS256"), (NEW_ES256, "ES256")):
            new = [_token(signing, algorithm) for _ in range(few)]
            results.add(what, OURS, cpu_us=_seconds(check, new) * 1e6 / few)
        bad = [_with_signature_of(seen, _token(signing, "RS256")) for _ in range(BAD_TOKENS)]
        results.add(BAD, OURS, cpu_us=_seconds(check, bad) * 1e6 / len(bad))
    results.at_most("µs of a token seen before", results.middle(SEEN, "cpu_us"), 3.0)
    if world.options.before is not None:
        await _measure_without_tokens(world, results, world.options.before)


async def _measure_without_tokens(world: World, results: Results, before_folder: Path) -> None:
    """Measure an event where no token is required, in turns with a checkout from before tokens.
    Each is measured in many processes, as they differ by more than the difference that is looked
    for."""
    folders = {OURS: HERE.parents[1], BEFORE: before_folder}
    for _ in range(int(world.sized(PAIRS, 2))):
        for name, folder in folders.items():
            environment = {**os.environ, "PYTHONPATH": str(folder / "functions")}
            command = [sys.executable, str(HERE / "one_ingest.py"), "40"]
            process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=PIPE)
            printed, _ = await process.communicate()
            results.add(OFF, name, cpu_us=float(printed))
    ratio, error = results.to(BEFORE, OFF, "cpu_us"), results.error_to(BEFORE, OFF, "cpu_us")
    results.add(OFF, f"ours, × {BEFORE}", cpu_us=ratio, standard_error=error)
    results.at_most("CPU where nobody is asked, × before", ratio, 1.01)


def _check(signing: dict[str, Any]) -> SenderCheck:
    kinds: dict[str, Any] = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm}
    keys = {
        name: JwkKey(jwt.PyJWK(kinds[name].to_jwk(key.public_key(), as_dict=True), name))
        for name, key in signing.items()
    }
    ingress = Ingress(
        namespace="shop", broker="default", topic="t", kafka=Kafka(bootstrap_servers="none")
    )
    return SenderCheck(ingress, AUDIENCE, TokenVerifier(_Keys({**keys})))


def _token(signing: dict[str, Any], algorithm: str) -> bytes:
    """Return a signed token that is as long as the API server's, about 900 bytes."""
    now = int(time.time())
    claims = {
        "aud": [AUDIENCE],
        "exp": now + 3600,
        "iat": now,
        "iss": ISSUER,
        "jti": str(uuid.uuid4()),
        "kubernetes.io": {
            "namespace": "shop",
            "pod": {"name": "checkout-6d9f7c5b4-x2x7z", "uid": str(uuid.uuid4())},
            "serviceaccount": {"name": "checkout", "uid": str(uuid.uuid4())},
        },
        "nbf": now,
        "sub": "system:serviceaccount:shop:checkout",
    }
    token = jwt.encode(claims, signing[algorithm], algorithm, headers={"kid": algorithm})
    return token.encode()


def _with_signature_of(other_token: bytes, token: bytes) -> bytes:
    """Return `token` with the signature of `other_token`, which is wrong but as long."""
    return token[: token.rindex(b".")] + other_token[other_token.rindex(b".") :]


def _with(token: bytes) -> Headers:
    """Return the headers of an event with this token. The value is a new object, as from a socket:
    its hash isn't cached."""
    return (*EVENT_HEADERS, (b"authorization", b"Bearer " + token))


def _seconds(check: SenderCheck, tokens: Sequence[bytes]) -> float:
    """Return the seconds of CPU that it takes to check all tokens."""
    requests, admit = [_with(token) for token in tokens], check.admit
    began = time.thread_time()
    for headers in requests:
        admit(headers)
    return time.thread_time() - began
