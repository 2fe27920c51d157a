# SPDX-License-Identifier: Apache-2.0
"""
Check the keys of this machine before Zenoh gets them, which only reports that a link did not open.

Certificates are verified by a TLS handshake in memory. No text quotes the content of a file. Any
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
import itertools
from pathlib import Path
import ssl
from typing import Any, cast

from lerobot_serve.errors import UserError
from lerobot_serve.private_file import mode_of_others

# files of a folder of keys
CA, CERTIFICATE, PRIVATE_KEY = 'ca.pem', 'certificate.pem', 'key.pem'
# a key that expires this soon is reported
SOON = timedelta(days=30)
HANDSHAKE_STEPS = 8
COPY_AGAIN = 'copy the folder of this machine from the one that `lerobot-serve keys` made again'
# relative names of a subject, each some pairs of type and value
Names = tuple[tuple[tuple[str, str], ...], ...]
# of OpenSSL
EXPIRED, NOT_YET_VALID, WRONG_PURPOSE = 10, 9, 26


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys with which links open: common name, and the first expiry of certificate and ca.pem."""

    common_name: str
    expires: datetime


def check_credentials(folder: Path, *, may_listen: bool) -> Credentials:
    """
    Return what the keys of a machine say; `may_listen` for those of a server. Raises UserError
    for keys with which no link opens.
    """
    for name in (CA, CERTIFICATE, PRIVATE_KEY):
        _check_readable(folder / name)
    check_mode(folder / PRIVATE_KEY)
    if may_listen:
        _verify(folder, as_server=True)
    return _verify(folder, as_server=False)


def check_mode(key: Path) -> None:
    """Raise UserError for a key that others on this machine can read."""
    if mode_of_others(key):
        mode = key.stat().st_mode & 0o777
        raise UserError(
            f'{key} has mode {mode:04o}, others can read or change it; allowed is 0600: '
            f'chmod 600 {key}'
        )


def _check_readable(file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise UserError(
            f'{file}: {error.strerror}; zenoh_keys needs {CA}, {CERTIFICATE} and {PRIVATE_KEY}; '
            f'{COPY_AGAIN}'
        ) from None


def _verify(folder: Path, *, as_server: bool) -> Credentials:
    """Raise UserError unless the other end takes the certificate."""
    server = _context(folder, ssl.PROTOCOL_TLS_SERVER, verifies=not as_server)
    client = _context(folder, ssl.PROTOCOL_TLS_CLIENT, verifies=as_server)
    try:
        shown = _shake_hands(server, client, verifying=int(not as_server))
    except ssl.SSLCertVerificationError as error:
        raise UserError(f'{folder / CERTIFICATE} {_fault(error)}') from None
    except ssl.SSLError as error:
        raise UserError(
            f'{folder}: these keys open no link ({error.reason}); {COPY_AGAIN}'
        ) from None
    authorities = (client if as_server else server).get_ca_certs()
    return Credentials(_common_name(shown), min(map(_expiry, (shown, *authorities))))


def _context(folder: Path, protocol: ssl._SSLMethod, *, verifies: bool) -> ssl.SSLContext:
    """Return one end, which shows the certificate. Raises UserError."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    try:
        context.load_verify_locations(folder / CA)
    except ssl.SSLError:
        raise UserError(f'{folder / CA} is not a certificate; {COPY_AGAIN}') from None
    try:
        # with a password, so that an encrypted key does not ask for one on the terminal
        context.load_cert_chain(folder / CERTIFICATE, folder / PRIVATE_KEY, password='')
    except ssl.SSLError as error:
        reason = (
            'is not the certificate of'
            if error.reason == 'KEY_VALUES_MISMATCH'
            else 'cannot be read together with'
        )
        raise UserError(
            f'{folder / CERTIFICATE} {reason} {PRIVATE_KEY} beside it; {COPY_AGAIN}'
        ) from None
    return context


def _shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, *, verifying: int
) -> dict[str, Any]:
    """
    Connect client (0) and server (1) in memory; return the certificate that the verifying end
    sees. Raises ssl.SSLError.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = [*ends]
    for _ in range(HANDSHAKE_STEPS):
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    if waiting:
        raise ssl.SSLError('no handshake')
    return cast(dict[str, Any], ends[verifying].getpeercert())


def _common_name(certificate: dict[str, Any]) -> str:
    names = itertools.chain.from_iterable(cast(Names, certificate.get('subject', ())))
    return dict(names).get('commonName', '')


def _expiry(certificate: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate['notAfter']), timezone.utc)


def _fault(error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case n if n == EXPIRED:
            return (
                'has expired, or ca.pem has; make a new one with `lerobot-serve keys rotate`, and '
                'check the clock of this machine'
            )
        case n if n == NOT_YET_VALID:
            return 'is not valid yet; check the clock of this machine'
        case n if n == WRONG_PURPOSE:
            return (
                'is that of a robot or operator, which may not listen; leave zenoh_listen empty, '
                'or make a key with `lerobot-serve keys server` or `keys router`'
            )
    return (
        f'was not signed by {CA} beside it ({error.verify_message}); is it of another site? '
        f'{COPY_AGAIN}'
    )
