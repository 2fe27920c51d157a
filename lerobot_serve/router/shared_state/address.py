# SPDX-License-Identifier: Apache-2.0
"""Where the shared state is: the parameters state_url and state_site. Pure."""

from __future__ import annotations

from dataclasses import dataclass
import re
from urllib.parse import parse_qsl, urlsplit

from lerobot_serve.parameters import ParameterError

SCHEMES = ('postgresql', 'postgres')
SITE = re.compile(r'[a-z0-9][a-z0-9_-]{0,39}')
PREFIX = 'lerobot_serve_'
URL_EXAMPLE = 'postgresql://USER@HOST:5432/DATABASE'


@dataclass(frozen=True, slots=True)
class StateAddress:
    """`url` is without a password; each site has a schema of its own in the database."""

    url: str
    site: str

    @property
    def schema(self) -> str:
        return PREFIX + self.site.replace('-', '_')

    @property
    def name(self) -> str:
        """What texts call the store."""
        parts = urlsplit(self.url)
        host = parts.hostname or dict(parse_qsl(parts.query)).get('host', 'localhost')
        port = f':{parts.port}' if parts.port else ''
        return f'the state of site {self.site!r} at {host}{port}{parts.path}'


def check_address(url: str, site: str) -> None:
    """Raise ParameterError for an address that cannot be used."""
    if not SITE.fullmatch(site):
        raise ParameterError(
            f'state_site must be 1 to 40 of a-z, 0-9, _ and -, and begin with a letter or digit, '
            f'got {site!r}'
        )
    if not url:
        return
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None or 'password' in dict(parse_qsl(parts.query))
        is_complete = parts.scheme in SCHEMES and parts.path.strip('/') and parts.port != 0
    except ValueError:
        has_password, is_complete = False, False
    if has_password:
        # everybody may read parameters
        raise ParameterError(
            'state_url must not contain a password; put it into a file that only the router may '
            'read, and name that in the environment variable PGPASSFILE'
        )
    if not is_complete:
        raise ParameterError(f'state_url must be as {URL_EXAMPLE}, got {url!r}')


def state_address(url: str, site: str) -> StateAddress | None:
    """Return the address; None when the state is in a file. Raises ParameterError."""
    check_address(url, site)
    return StateAddress(url, site) if url else None
