# SPDX-License-Identifier: Apache-2.0
"""Where the shared state is: the parameters state_url and state_site. Pure."""

from __future__ import annotations

from dataclasses import dataclass
import re
from urllib.parse import parse_qsl, SplitResult, urlsplit

from lerobot_serve.parameters import ParameterError

SCHEMES = ('postgresql', 'postgres')
SITE = re.compile(r'[a-z0-9][a-z0-9_]{0,39}')
# several hosts, as libpq takes them
HOSTS = re.compile(r'(?:[^:,@/?\s]+|\[[0-9a-fA-F:.]+\])?(?::[0-9]{1,5})?')
LAST_PORT = 65535
PREFIX = 'lerobot_serve_'
URL_EXAMPLE = 'postgresql://USER@HOST:5432/DATABASE'


@dataclass(frozen=True, slots=True)
class StateAddress:
    """`url` is without a password; each site has a schema of its own in the database."""

    url: str
    site: str

    @property
    def schema(self) -> str:
        return PREFIX + self.site

    @property
    def name(self) -> str:
        """What texts call the store."""
        parts = urlsplit(self.url)
        hosts = _hosts(parts) or dict(parse_qsl(parts.query)).get('host', 'localhost')
        return f'the state of site {self.site!r} at {hosts}{parts.path}'


def check_address(url: str, site: str) -> None:
    """Raise ParameterError for an address that cannot be used."""
    if not SITE.fullmatch(site):
        raise ParameterError(
            f'state_site must be 1 to 40 of a-z, 0-9 and _, and begin with a letter or digit, got '
            f'{site!r}'
        )
    if not url:
        return
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None or 'password' in dict(parse_qsl(parts.query))
        is_complete = bool(parts.path.strip('/')) and parts.scheme in SCHEMES
        is_complete = is_complete and all(map(_is_host, _hosts(parts).split(',')))
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


def _hosts(parts: SplitResult) -> str:
    """Return hosts and ports, without the user."""
    return parts.netloc.rpartition('@')[2]


def _is_host(text: str) -> bool:
    port = text.rpartition(':')[2] if ':' in text and not text.endswith(']') else '0'
    return bool(HOSTS.fullmatch(text)) and int(port or 0) <= LAST_PORT


def state_address(url: str, site: str) -> StateAddress | None:
    """Return the address; None when the state is in a file. Raises ParameterError."""
    check_address(url, site)
    return StateAddress(url, site) if url else None
