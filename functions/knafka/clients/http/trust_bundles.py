"""Trust bundles: the installation's certificate authorities, trusted besides the system's and an
origin's own.

    folder (a mounted ConfigMap) -> PEM of all its files -> the TLS context of each https origin

A new https connection reads the folder if that has changed, at most once in
`FOLDER_CHECK_INTERVAL`; open connections stay until they are too old. So a changed bundle restarts
nothing, and no attempt waits for it.

Not here: which ConfigMaps are trust bundles (`knafka_operator.functions.trust_bundles`).
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

log = logging.getLogger(__name__)

FOLDER_CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks of the folder, which all connections share."""

_FileVersion: TypeAlias = tuple[str, int, int, int]
"""A file's name, inode, time of change (ns) and size (bytes). kubelet replaces the whole folder
behind a link, so all files change at once."""


class TrustBundles:
    """Reads the authorities in a folder's files, for all connections of a process."""

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """`folder` holds the files; if it is missing, it counts as empty, as it may be created
        later. `now` returns seconds of a monotonic clock."""
        self._folder = folder
        self._now = now
        self._next_check_at = float("-inf")
        """The time (`now`) before which the folder isn't checked again."""
        self._read_versions: tuple[_FileVersion, ...] | None = None
        """The versions of the files that were read last; None: none were read."""
        self._pem = ""
        """The result of the last `read`."""

    def read(self) -> str:
        """Return the PEM of all files that hold certificates; empty if no file does, or the folder
        is missing. The files are read again if they have changed. If they can't be read, which is
        logged, the last PEM is returned."""
        if self._now() < self._next_check_at:
            return self._pem
        self._next_check_at = self._now() + FOLDER_CHECK_INTERVAL
        try:
            paths = sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
            versions = tuple(filter(None, map(_file_version, paths)))
            if versions != self._read_versions:
                self._pem = "".join(map(_read_certificates, paths))
                self._read_versions = versions
        except FileNotFoundError:  # the folder's; a single file may be missing
            self._read_versions, self._pem = None, ""
        except OSError as error:
            # The bundles that were read before stay in use, as an attempt may still succeed with
            # them.
            log.warning("the trust bundles in %s can't be read: %s", self._folder, error)
        return self._pem


class TlsContext:
    """The TLS context for one https origin, created anew when the trust bundles have changed."""

    def __init__(
        self,
        make_context: Callable[[], ssl.SSLContext],
        ca_certs: str | None,
        bundles: TrustBundles | None,
    ) -> None:
        """`make_context` returns a new context that trusts the system's authorities. `ca_certs`:
        PEM of the origin's own authorities; None: it has none. `bundles`: None if there are no
        bundles."""
        self._make_context = make_context
        self._ca_certs = ca_certs
        self._bundles = bundles
        self._pem = ""
        """The bundles' PEM that `_context` trusts."""
        self._context: ssl.SSLContext | None = None
        """The context that was made last; None: none yet."""

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection. Raises `ValueError` or `OSError` if the origin's
        own authorities can't be read."""
        pem = "" if self._bundles is None else self._bundles.read()
        if self._context is None or pem != self._pem:
            context = self._make_context()
            if self._ca_certs is not None:
                context.load_verify_locations(cadata=self._ca_certs)
            if pem:
                context.load_verify_locations(cadata=pem)
            self._context, self._pem = context, pem
        return self._context


def _file_version(path: Path) -> _FileVersion | None:
    """Return a file's version. None: there is no such file; kubelet removes the links of files that
    are gone only after it has replaced the folder behind them. Raises `OSError`."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return path.name, status.st_ino, status.st_mtime_ns, status.st_size


def _read_certificates(path: Path) -> str:
    """Return a file's PEM, ended by a line break; empty if it holds no certificate, which is
    logged, or if there is no such file. Raises `OSError` if the file can't be read."""
    try:
        text = path.read_text("ascii", "replace")
    except FileNotFoundError:
        return ""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ValueError, OSError) as error:
        log.warning("the trust bundle %s holds no certificates: %s", path, error)
        return ""
    return text.rstrip("\n") + "\n"
