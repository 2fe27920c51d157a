# SPDX-License-Identifier: Apache-2.0
"""
The certificates of a site: X.509, ECDSA P-256. Any thread.

Imported only where keys are made: no node needs the library cryptography.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lerobot_serve.errors import UserError

# the clock of a robot may be behind
BACKDATED = timedelta(days=1)


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """A certificate and its key as PEM; it is never printed."""

    certificate: bytes
    key: bytes
    expires: datetime


def make_authority(site: str, days: int) -> KeyPair:
    """Return the authority of a site."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(f'lerobot_serve {site}'[:64])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = (
        _builder(name, name, key.public_key(), key.public_key(), _expiry(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    return _signed(builder, key, key)


def make_certificate(
    authority: KeyPair, common_name: str, days: int, *, hosts: Sequence[str], may_listen: bool
) -> KeyPair:
    """
    Return a key of one machine; only one with `may_listen` can be that of a server. Raises
    UserError for a validity beyond that of the authority.
    """
    ca, ca_key = _loaded(authority)
    expires = _expiry(days)
    if expires > authority.expires:
        raise UserError(
            f'--days {days} ends after the authority, which expires on '
            f'{authority.expires:%Y-%m-%d}; give fewer, or make a new site with keys init'
        )
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if may_listen:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _builder(_name(common_name), ca.subject, key.public_key(), ca_key.public_key(), expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=True)
    )
    if hosts:
        names = x509.SubjectAlternativeName([general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return _signed(builder, key, ca_key)


def general_name(host: str) -> x509.GeneralName:
    """Return a host as subject alternative name. Raises UserError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip('[]')))
    except ValueError:
        pass
    labels = host.split('.')
    if len(host) <= 253 and all(_is_label(label) for label in labels) and host[-1].isalpha():
        return x509.DNSName(host)
    raise UserError(
        f'--host {host!r} is neither an IP address nor a DNS name; give what robots write in '
        'zenoh_connect, such as 192.168.1.5 or gpu-1.lab.example, without protocol and port'
    )


def load_authority(certificate: bytes, key: bytes) -> KeyPair:
    """Return an authority that was written. Raises UserError for files that are none."""
    try:
        ca = x509.load_pem_x509_certificate(certificate)
        pair = KeyPair(certificate, key, ca.not_valid_after_utc)
        if _loaded(pair)[1].public_key() != ca.public_key():
            raise ValueError
    except (ValueError, TypeError):
        # without the text of the library: it may quote what it read
        raise UserError(
            'the authority cannot be read: its certificate and key do not fit; restore them from '
            'a backup, or make a new site with keys init'
        ) from None
    return pair


def _is_label(label: str) -> bool:
    words = label.replace('-', '').replace('_', '')
    return (
        0 < len(label) <= 63
        and label[0] != '-' != label[-1]
        and (words.isascii() and words.isalnum())
    )


def _loaded(authority: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Raises ValueError, TypeError."""
    key = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError
    return x509.load_pem_x509_certificate(authority.certificate), key


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _expiry(days: int) -> datetime:
    return (datetime.now(timezone.utc) + timedelta(days=days)).replace(microsecond=0)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    expires: datetime,
) -> x509.CertificateBuilder:
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(timezone.utc) - BACKDATED)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(identifier, critical=False)
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    certificate = builder.sign(issuer_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    return KeyPair(
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
        certificate.not_valid_after_utc,
    )
