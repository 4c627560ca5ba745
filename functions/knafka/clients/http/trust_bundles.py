"""Trust bundles: the installation's certificate authorities, beside the system's and an origin's.

    folder (a mounted ConfigMap) -> PEM of all its files -> the TLS context of each https origin

A bundle that changes is read by the next connection that is made, at most once in `LOOK_INTERVAL`;
connections that are open stay, and end by their age. So a changed bundle restarts nothing, and no
attempt waits for it. Without https nothing here is called.

Not here: which ConfigMaps those are (`knafka_operator.reconcile.trust_bundles`).
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

log = logging.getLogger(__name__)

LOOK_INTERVAL: Final = 1.0
"""Seconds between two looks at the folder, whoever connects."""

_Seen: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Name, inode, time of change and size of each file: kubelet swaps a folder behind a link, so all
of them change at once."""


class TrustBundles:
    """The authorities in a folder's files; one for all connections of a process."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """A folder that is missing is an empty one: it may come later."""
        self._folder = folder
        self._now = now
        self._look_at = float("-inf")
        self._seen: _Seen | None = None
        self._pem = ""

    def read(self) -> str:
        """PEM of the files that hold certificates, as they are by now; empty if none does."""
        if self._now() < self._look_at:
            return self._pem
        self._look_at = self._now() + LOOK_INTERVAL
        try:
            paths = sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
            seen = tuple((path.name, *_file_version(path)) for path in paths)
            if seen != self._seen:
                self._pem = "".join(map(_certificates, paths))
                self._seen = seen
        except FileNotFoundError:
            self._seen, self._pem = None, ""
        except OSError as error:
            # What was read before holds: an attempt may still succeed by it.
            log.warning("the trust bundles in %s can't be read: %s", self._folder, error)
        return self._pem


class TlsContext:
    """The TLS context for one https origin, made anew when the trust bundles have changed."""

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        ca_certs: str | None,
        bundles: TrustBundles | None,
    ) -> None:
        """`make` gives a context that trusts the system's authorities; `ca_certs`: PEM of the
        origin's own; `bundles` None: there are none."""
        self._make = make
        self._ca_certs = ca_certs
        self._bundles = bundles
        self._pem = ""
        self._context: ssl.SSLContext | None = None

    def current(self) -> ssl.SSLContext:
        """For a connection that is made now; raises `ValueError` or `OSError` for an origin's own
        authorities that can't be read."""
        pem = "" if self._bundles is None else self._bundles.read()
        if self._context is None or pem != self._pem:
            context = self._make()
            if self._ca_certs is not None:
                context.load_verify_locations(cadata=self._ca_certs)
            if pem:
                context.load_verify_locations(cadata=pem)
            self._context, self._pem = context, pem
        return self._context


def _file_version(path: Path) -> tuple[int, int, int]:
    """Return what identifies a file's version."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _certificates(path: Path) -> str:
    """A file's PEM, ended by a line break; empty where it holds no certificate."""
    text = path.read_text("ascii", "replace")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ValueError, OSError) as error:
        log.warning("the trust bundle %s holds no certificates: %s", path, error)
        return ""
    return text.rstrip("\n") + "\n"
