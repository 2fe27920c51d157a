# SPDX-License-Identifier: Apache-2.0
"""What an operator sets of the link, and the configuration that Zenoh gets from it."""

from __future__ import annotations

from dataclasses import dataclass
import json
from pathlib import Path
import re

from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.keys import check_site

ENDPOINT = re.compile(r'(tcp|tls|quic)/(\[[0-9A-Fa-f:.]+\]|[^/:\s]+):\d{1,5}')
ENCRYPTED = ('tls/', 'quic/')
# a killed peer closes its connection at once; this is for one that hangs or is cut off
LEASE_MS = 2000
OBSERVER_TIMEOUT_MS = 3000
# files of a folder of keys
CA, CERTIFICATE, PRIVATE_KEY = 'ca.pem', 'certificate.pem', 'key.pem'


@dataclass(frozen=True, slots=True)
class ZenohSettings:
    """
    connect        endpoints to connect to: of a Zenoh router, or of servers
    listen         endpoints to listen on; a robot needs none
    keys           folder with CA, CERTIFICATE and PRIVATE_KEY; empty: neither encryption nor names
    shared_memory  payloads between processes of one host
    observes       see all that passes the one endpoint in `connect`, which must be reached
    """

    site: str = 'default'
    connect: tuple[str, ...] = ()
    listen: tuple[str, ...] = ()
    keys: Path | None = None
    shared_memory: bool = True
    observes: bool = False


def configuration(settings: ZenohSettings) -> str:
    """Return the configuration as JSON. Raises UserError."""
    check_site(settings.site)
    for endpoint in (*settings.connect, *settings.listen):
        _check_endpoint(endpoint, settings.keys)
    link: dict[str, object] = {'tx': {'lease': LEASE_MS, 'keep_alive': 4}}
    if settings.keys:
        link['tls'] = _tls(settings.keys)
    return json.dumps(
        {
            # a peer passes on nothing to other peers, but everything to clients
            'mode': 'client' if settings.observes else 'peer',
            # a node connects in the background, for ever: it starts and ends without its router
            'connect': {
                'endpoints': list(settings.connect),
                'timeout_ms': OBSERVER_TIMEOUT_MS if settings.observes else -1,
                'exit_on_failure': settings.observes,
                'retry': {'period_init_ms': 100, 'period_max_ms': 1000},
            },
            'listen': {
                'endpoints': list(settings.listen),
                'timeout_ms': 0,
                'exit_on_failure': True,
            },
            'scouting': {
                # nobody is waited for: clients watch the tokens of their servers
                'delay': 0,
                'multicast': {'enabled': False},
                'gossip': {'enabled': False},
            },
            'transport': {'shared_memory': {'enabled': settings.shared_memory}, 'link': link},
        }
    )


def _check_endpoint(endpoint: str, keys: Path | None) -> None:
    if not ENDPOINT.fullmatch(endpoint):
        raise UserError(
            f'{endpoint!r} is no Zenoh endpoint; give PROTOCOL/HOST:PORT with tcp, tls or quic, '
            'such as tcp/192.168.1.5:7447'
        )
    if endpoint.startswith(ENCRYPTED) and not keys:
        raise UserError(f'{endpoint} needs zenoh_keys, the folder with the keys of this machine')
    if keys and not endpoint.startswith(ENCRYPTED):
        raise UserError(
            f'{endpoint} is not encrypted, and zenoh_keys is set; use tls/ or quic/, or set no '
            'keys'
        )


def _tls(folder: Path) -> dict[str, object]:
    files = {name: folder / name for name in (CA, CERTIFICATE, PRIVATE_KEY)}
    for file in files.values():
        try:
            file.read_bytes()
        except OSError as error:
            raise UserError(
                f'{file}: {error.strerror}; zenoh_keys needs {CA}, {CERTIFICATE} and {PRIVATE_KEY}'
            ) from None
    certificate, key = str(files[CERTIFICATE]), str(files[PRIVATE_KEY])
    return {
        'root_ca_certificate': str(files[CA]),
        'enable_mtls': True,
        'verify_name_on_connect': True,
        'listen_certificate': certificate,
        'listen_private_key': key,
        'connect_certificate': certificate,
        'connect_private_key': key,
    }
