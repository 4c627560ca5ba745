"""Opens the port on which a function itself serves TLS, besides its plain port.

    folder with tls.crt and tls.key (a Secret in cert-manager's form) -> a listener on a port
    the files change -> the next handshake shows the new certificate; open connections stay
    the files can't be used -> the previous certificate stays in use, and the reason is logged

A certificate never changes in a context that handshakes use: each certificate gets a new context.
The callback for server names, which is also called without a name, gives each handshake the newest
context.

Not here: client certificates (none are requested), and plain HTTP (`serving`).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

log = logging.getLogger(__name__)

CERTIFICATE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
"""Names of the two files in the folder: the certificate and its private key, both PEM."""
HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds within which a TLS handshake must end, so that a silent client doesn't hold its buffers
for longer."""

_FileVersions: TypeAlias = tuple[tuple[int, int, int], ...]
"""Versions of the certificate's and the key's file (`_file_version`)."""


class ServerCertificate:
    """The certificate with which a function serves TLS; its files may change at any time."""

    def __init__(self, folder: Path) -> None:
        """Create the TLS context without a certificate; `reload_if_changed` loads one from
        `folder`."""
        self.context = _tls_context()
        """The listener's context, whose callback gives each handshake the newest certificate."""
        self.context.sni_callback = self._use_newest_certificate
        self._folder = folder
        self._seen: _FileVersions | str | None = None
        """What the last `reload_if_changed` saw: the files' versions, or why they weren't found;
        None: it wasn't called yet."""
        self._newest: ssl.SSLContext | None = None
        """The context with the newest certificate; None: there is none yet."""

    @property
    def is_loaded(self) -> bool:
        """Whether a certificate was loaded, so that TLS can be served."""
        return self._newest is not None

    def reload_if_changed(self) -> None:
        """Read the files if they have changed. If they can't be used, log the reason and keep the
        previous certificate."""
        certificate, key = (self._folder / name for name in (CERTIFICATE, KEY_FILE))
        versions: _FileVersions | str
        try:
            versions = tuple(_file_version(path) for path in (certificate, key))
        except OSError as error:
            versions = str(error)
        if versions == self._seen:
            return
        self._seen = versions
        try:
            context = _tls_context()
            context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:
            consequence = "the previous one stays in use" if self.is_loaded else "no TLS is served"
            log.error(
                "the certificate in %s can't be used, %s: %s", self._folder, consequence, error
            )
            return
        if self.is_loaded:
            log.info("the certificate in %s has changed", self._folder)
        self._newest = context

    def _use_newest_certificate(
        self, handshake: ssl.SSLObject, _server_name: str | None, _context: ssl.SSLContext
    ) -> None:
        """Use the newest certificate for this handshake. `ssl` calls this with the requested server
        name and the listener's context, which make no difference."""
        assert self._newest is not None, "the port opens only once there is a certificate"
        handshake.context = self._newest


class TlsListener:
    """A port with TLS, opened as soon as there is a certificate."""

    def __init__(
        self, folder: Path, host: str, port: int, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """`folder` has the certificate; `host` and `port`: where to listen; `make_protocol` returns
        the protocol of a new connection, which gets the decrypted data."""
        self._certificate = ServerCertificate(folder)
        self._host, self._port = host, port
        self._make_protocol = make_protocol
        self.server: asyncio.Server | None = None
        """The open port; None: there is no certificate yet."""

    async def refresh(self) -> asyncio.Server | None:
        """Read the certificate again if it has changed, and open the port as soon as there is one.
        Return the server if this call has opened the port, else None. Raises `OSError` if the port
        can't be opened."""
        self._certificate.reload_if_changed()
        if self.server is not None or not self._certificate.is_loaded:
            return None
        self.server = await asyncio.get_running_loop().create_server(
            self._make_protocol,
            self._host,
            self._port,
            ssl=self._certificate.context,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
            backlog=2048,  # uvicorn's default, as the port without TLS has it
        )
        return self.server


def _tls_context() -> ssl.SSLContext:
    """Return a server's TLS context without a certificate: TLS 1.2 or later, for HTTP/1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _file_version(path: Path) -> tuple[int, int, int]:
    """Return inode, modification time (ns) and size of a file, which identify its version. Raises
    `OSError`, such as for a missing file."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
