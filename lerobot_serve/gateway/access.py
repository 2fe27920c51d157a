# SPDX-License-Identifier: Apache-2.0
"""Listen address and access control of an endpoint. Reads the files that are named; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import ssl

from lerobot_serve.access.addresses import is_loopback_address
from lerobot_serve.access.token_file import open_tokens, Tokens
from lerobot_serve.errors import UserError
from lerobot_serve.gateway.door_parameters import EndpointSettings

WHOSE = 'callers of the gateway'


@dataclass(frozen=True, slots=True)
class Exposure:
    """
    The address of a door, its TLS files, and the tokens of its callers.

    port          0: any free port
    tokens        None: every caller that reaches the address is let in
    certificate   PEM of the certificate and of its key; empty without TLS
    """

    door: str
    host: str = '127.0.0.1'
    port: int = 0
    tokens: Tokens | None = None
    certificate: bytes = b''
    key: bytes = b''
    tls: ssl.SSLContext | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the door."""
        return is_loopback_address(self.host)

    @property
    def needs_token(self) -> bool:
        return self.tokens is not None

    def name_of(self, token: str) -> str:
        """Return the name behind a token; empty for a wrong one, and without tokens."""
        return self.tokens.name_of(token) if self.tokens else ''

    def lets_in(self, token: str) -> bool:
        """Return whether a caller with this token is let in; '' for none."""
        return self.tokens is None or bool(self.tokens.name_of(token))

    @property
    def shown_host(self) -> str:
        """The host as it stands before a port."""
        return f'[{self.host}]' if ':' in self.host else self.host

    def cannot_listen(self, reason: str) -> UserError:
        """Return the error of an address that cannot be used."""
        return UserError(
            f'the door {self.door} cannot listen on {self.host} port {self.port}: {reason}; set '
            f'{self.door}.port or {self.door}.host'
        )

    @property
    def warning(self) -> str:
        """What the operator of the door must know; empty for nothing."""
        if self.is_loopback:
            return ''
        if self.tokens is None:
            return (
                f'the door {self.door} listens on {self.host} and lets everybody in '
                f'({self.door}.allow_anyone)'
            )
        if not self.certificate:
            return (
                f'the door {self.door} listens on {self.host} without TLS: others on the network '
                f'can read tokens and images; set {self.door}.certificate_file and '
                f'{self.door}.key_file'
            )
        return ''


def open_exposure(door: str, settings: EndpointSettings) -> Exposure:
    """
    Return the exposure of a door from its parameters. Raises UserError, also for an address that
    others reach while no tokens are set.
    """
    host, tokens = settings.host, None
    if settings.tokens_file:
        tokens = open_tokens(Path(settings.tokens_file).expanduser(), WHOSE)
    elif not (is_loopback_address(host) or settings.allow_anyone):
        raise UserError(
            f'{door}.host is {host}, which other machines reach, and {door}.tokens_file is empty; '
            f'set {door}.tokens_file, or {door}.host to 127.0.0.1, or {door}.allow_anyone to true '
            'on a network that you trust'
        )
    certificate, key, tls = _read_tls(door, settings)
    return Exposure(door, host, settings.port, tokens, certificate, key, tls)


def _read_tls(door: str, settings: EndpointSettings) -> tuple[bytes, bytes, ssl.SSLContext | None]:
    """Return certificate, key and context. Raises UserError."""
    names = settings.certificate_file, settings.key_file
    if not any(names):
        return b'', b'', None
    if not all(names):
        raise UserError(f'{door}.certificate_file and {door}.key_file belong together; set both')
    certificate, key = (Path(name).expanduser() for name in names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        return certificate.read_bytes(), key.read_bytes(), context
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f'{door}.certificate_file {certificate} and {door}.key_file {key} cannot be used: '
            f'{error.strerror or error}'
        ) from None
