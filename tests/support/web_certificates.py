"""Certificates as cert-manager has them: authorities, and Secrets' files for a server.

    authority = WebAuthority("one")
    write(folder, authority.files("127.0.0.1"))      tls.crt, tls.key, ca.crt

A folder is changed as kubelet changes it: all files at once, behind a link.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class WebAuthority:
    """A CA of its own; its certificate is `certificate`, as PEM."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        public = self._key.public_key()
        self._identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        builder = (
            _builder(self._name, self._name, public, DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
            .add_extension(self._identifier, False)
        )
        signed = builder.sign(self._key, hashes.SHA256())
        self.certificate = signed.public_bytes(Encoding.PEM).decode()

    def files(
        self, *hosts: str, lasts: datetime.timedelta = DAY, with_rsa: bool = False
    ) -> dict[str, str]:
        """A certificate for these hosts, its key, and who has signed it; `lasts` from now."""
        key = (
            rsa.generate_private_key(public_exponent=65537, key_size=2048)
            if with_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        names = x509.SubjectAlternativeName([_name(each) for each in hosts])
        by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._identifier)
        builder = _builder(subject, self._name, key.public_key(), lasts)
        builder = builder.add_extension(names, False).add_extension(by, False)
        signed = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return {
            "tls.crt": signed.public_bytes(Encoding.PEM).decode(),
            "tls.key": private.decode(),
            "ca.crt": self.certificate,
        }

    def server_context(self, folder: Path, host: str = "127.0.0.1") -> ssl.SSLContext:
        """For a server at this host; `folder` may hold its files."""
        write(folder, self.files(host))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        return context


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Have these files in a folder, and no others, all at once."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / f"..{uuid4().hex}"
    version.mkdir()
    for name, text in files.items():
        (version / name).write_text(text)
    swapped = folder / "..data_tmp"
    swapped.symlink_to(version.name)
    os.replace(swapped, folder / "..data")
    for each in folder.iterdir():
        if each.is_symlink() and not each.name.startswith("..") and each.name not in files:
            each.unlink()
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey,
    lasts: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + lasts)
    )
