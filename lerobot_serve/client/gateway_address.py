# SPDX-License-Identifier: Apache-2.0
"""The address of a gateway, and what a client shows it. Reads the file of `tls_ca`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
import re
from urllib.parse import urlsplit

from lerobot_serve.access.addresses import is_loopback_address
from lerobot_serve.client.errors import WrongSettings

PLAIN, ENCRYPTED = 'grpc', 'grpcs'
SCHEMES = (PLAIN, ENCRYPTED)
FORM = 'give grpc://HOST:PORT, or grpcs://HOST:PORT for TLS'
# as the gateway takes it; `client/` is not part of it
NAME = re.compile(r'[\w.@-]{1,64}', re.ASCII)


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """
    url     as it was given
    target  host and port
    tls_ca  PEM of the authorities; None: those of the system
    """

    url: str
    target: str
    is_encrypted: bool
    token: str = field(default='', repr=False)
    tls_ca: bytes | None = field(default=None, repr=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth reading before the first prediction."""
        host = self.target.rpartition(':')[0].strip('[]')
        if self.is_encrypted or is_loopback_address(host):
            return ()
        return (
            f'{self.url} is not encrypted: others on the network can read images and token; use '
            'grpcs:// where the gateway or a proxy before it has TLS',
        )


def is_gateway(server: str) -> bool:
    """Return whether a server is named by the address of a gateway."""
    return server.partition('://')[0] in SCHEMES and '://' in server


def gateway_address(server: str, token: str, tls_ca: str | Path | None) -> GatewayAddress:
    """Return a checked address. Raises WrongSettings."""
    target, is_encrypted = _target(server), server.startswith(f'{ENCRYPTED}://')
    if tls_ca and not is_encrypted:
        raise WrongSettings(
            f'tls_ca is given, and {server} is not encrypted', f'write {ENCRYPTED}://{target}'
        )
    if not (token.isascii() and token.isprintable()) or ' ' in token:
        raise WrongSettings(
            'token has other characters than letters, digits and signs',
            'give one line of policy_service.tokens_file, without its name',
        )
    return GatewayAddress(server, target, is_encrypted, token, _authorities(tls_ca))


def _target(server: str) -> str:
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError:
        raise WrongSettings(f'server is {server!r}', FORM) from None
    has_more = parts.username is not None or parts.path.strip('/') or parts.query
    if not (parts.hostname and port) or has_more:
        raise WrongSettings(f'server is {server!r}', FORM)
    host = f'[{parts.hostname}]' if ':' in parts.hostname else parts.hostname
    return f'{host}:{port}'


def _authorities(tls_ca: str | Path | None) -> bytes | None:
    if not tls_ca:
        return None
    try:
        return Path(tls_ca).expanduser().read_bytes()
    except OSError as error:
        raise WrongSettings(
            f'tls_ca {tls_ca} cannot be read ({error.strerror})',
            "give the PEM file of the authority that signed the gateway's certificate",
        ) from None


def check_not_given(options: Mapping[str, object], only_for: str, remedy: str) -> None:
    """Raise WrongSettings for an option of the other link."""
    for name, value in options.items():
        if value:
            raise WrongSettings(f'{name} is only for {only_for}', remedy)


def caller_name(client_id: str, prefix: str) -> str:
    """Return the name that a gateway shows for a client id. Raises WrongSettings."""
    name = client_id.removeprefix(prefix)
    if not NAME.fullmatch(name):
        raise WrongSettings(
            f'client_id is {name[:80]!r}', 'a gateway takes 1 to 64 letters, digits or ._@-'
        )
    return name
