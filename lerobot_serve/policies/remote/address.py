# SPDX-License-Identifier: Apache-2.0
"""Check the address of a remote server, and make the TLS context of its connection. Any thread."""

from __future__ import annotations

import re
import ssl
from urllib.parse import urlsplit

from lerobot_serve.access.addresses import is_loopback_address
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.remote.contract_file import RemoteContract, TlsFiles

# a name or an address, of version 6 too
HOST = re.compile(r'[\w.:-]+', re.ASCII)
TLS_SCHEMES = ('https', 'wss', 'grpcs')


def check_address(contract: RemoteContract, kind: str, plain: str, tls: str) -> None:
    """
    Raise PolicyError unless the url has one of the two schemes, a host, a port if there is no
    default, and TLS files only with the TLS scheme.
    """
    schemes = ' or '.join(f'{scheme}://HOST:PORT' for scheme in (plain, tls) if scheme)
    try:
        parts = urlsplit(contract.url)
        known = parts.scheme in (plain, tls) and parts.hostname and parts.port
    except ValueError:
        known = False
    if not known:
        raise PolicyError(
            f'the url of a policy of the kind {kind} is {schemes}, got {contract.url!r}'
        )
    if contract.tls != TlsFiles() and parts.scheme != tls:
        raise PolicyError(
            f'tls_ca_file, tls_certificate_file and tls_key_file need a url with {tls}://, got '
            f'{contract.url!r}'
            if tls
            else f'a policy of the kind {kind} has no TLS; remove the tls_ fields, or reach the '
            'server through a tunnel'
        )
    if parts.username is not None or parts.password is not None:
        raise PolicyError('the url must not hold a password; use api_key_file')
    if '?' in contract.url or '#' in contract.url or not HOST.fullmatch(parts.hostname or ''):
        raise PolicyError(
            f'the url of a policy of the kind {kind} is {schemes}, without a query, got '
            f'{contract.url!r}'
        )


def is_exposed(contract: RemoteContract) -> bool:
    """Return whether the api key crosses a network unencrypted."""
    parts = urlsplit(contract.url)
    is_safe = parts.scheme in TLS_SCHEMES or is_loopback_address(parts.hostname or '')
    return bool(contract.api_key) and not is_safe


def tls_of(contract: RemoteContract) -> ssl.SSLContext | bool:
    """Return the TLS context of a client of aiohttp, True without TLS. Raises PolicyError."""
    if urlsplit(contract.url).scheme not in TLS_SCHEMES:
        return True
    files = contract.tls
    try:
        context = ssl.create_default_context(cafile=files.authority or None)
        if files.certificate:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise PolicyError(f'the TLS files of {contract.url} cannot be used: {error}') from None
    return context


def _no_password() -> str:
    # without this OpenSSL asks at the terminal
    raise ValueError('the private key needs a password; use a key without one')
