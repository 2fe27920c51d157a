# SPDX-License-Identifier: Apache-2.0
"""
The operator's settings of the link, the quality of service of each kind of traffic, and the
configuration of Zenoh made from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
import hashlib
import json
from pathlib import Path
import re
from typing import NamedTuple

from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.credentials import CA, CERTIFICATE, check_credentials, PRIVATE_KEY
from lerobot_serve.zenoh.keys import check_site


class Quality(NamedTuple):
    """
    `priority` is a name of zenoh.Priority. `express` sends without batching. With `blocks` a
    sender waits for its own uplink; otherwise a message that finds it full for 20 ms is lost.
    """

    priority: str
    express: bool = False
    blocks: bool = False


class Traffic(Enum):
    """
    A chunk overtakes the images of all others, as does a notice, a call for whose reply no thread
    waits; shadow requests wait for all other traffic. The request thread of a robot waits for its
    own uplink. A thread that serves several peers does not: one that is cut off must not hold up
    another. It leaves what has to wait to the LinkSender of that peer.
    """

    CHUNK = Quality('INTERACTIVE_HIGH', express=True)
    LATE_CHUNK = Quality('INTERACTIVE_HIGH', express=True, blocks=True)
    OBSERVATION = Quality('DATA', blocks=True)
    NOTICE = Quality('DATA_HIGH')
    SHADOW = Quality('BACKGROUND')
    STATUS = Quality('DATA_LOW')


ENDPOINT = re.compile(r'(tcp|tls|quic)/(\[[0-9A-Fa-f:.]+\]|[^/:\s]+):\d{1,5}')
ENCRYPTED = ('tls/', 'quic/')
# a killed peer closes its connection at once; this is for one that hangs or is cut off
LEASE_MS = 2000
# one each 200 ms: after an idle retransmission timeout, which is longer, TCP begins with ten
# packets in flight again, and a request takes one to three more round trips
KEEP_ALIVES_A_LEASE = 10
# within one host no packet is under way: one each 500 ms only shows that the other end lives
KEEP_ALIVES_A_LEASE_ON_ONE_HOST = 4
LOOPBACK = re.compile(r'[a-z]+/(127(\.\d+){3}|localhost|\[::1\]):\d+')
# batches of 64 KB, and the time that a message of several waits for a place in the queue: raw
# images fit through 100 Mbit/s
QUEUED_BATCHES, FRAGMENTS_WAIT_US = 16, 200_000
# Zenoh's own 2 batches and 1 ms lose chunks: a server that answers several robots at once fills
# them before a busy machine runs the thread that sends (2 to 20 of 100 lost in bursts of 20)
MESSAGE_WAIT_US = 20_000
# a chunk is below it: through the socket it is faster (p50 by 5 %, p99 by 30 %)
SHARED_MEMORY_THRESHOLD_BYTES = 16384
OBSERVER_TIMEOUT_MS = 3000
# of a folder of keys, beside those of credentials: who may exchange what with a server or router
ACCESS = 'access.json'


@dataclass(frozen=True, slots=True)
class ZenohSettings:
    """
    connect        endpoints to connect to: of a Zenoh router, or of servers
    listen         endpoints to listen on; a robot needs none
    keys           folder of this machine that `lerobot-serve keys` made; None: neither
                   encryption nor access control
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
    link: dict[str, object] = {'tx': transmission(_keep_alives(settings))}
    shared_memory = {
        'enabled': settings.shared_memory,
        'transport_optimization': {'message_size_threshold': SHARED_MEMORY_THRESHOLD_BYTES},
    }
    more: dict[str, object] = {}
    if settings.keys:
        credentials = check_credentials(settings.keys, may_listen=bool(settings.listen))
        link['tls'] = tls_configuration(settings.keys)
        more = _access(settings.keys, is_listening=bool(settings.listen))
        more['region_name'] = region_name(credentials.common_name)
    return json.dumps(
        common_configuration(
            # a peer passes on nothing to other peers, but everything to clients
            'client' if settings.observes else 'peer',
            connect=settings.connect,
            listen=settings.listen,
            must_connect=settings.observes,
        )
        | {'transport': {'shared_memory': shared_memory, 'link': link}}
        | more
    )


def _keep_alives(settings: ZenohSettings) -> int:
    """Return how many of them a node sends in a lease."""
    is_on_one_host = all(map(LOOPBACK.fullmatch, (*settings.connect, *settings.listen)))
    return KEEP_ALIVES_A_LEASE_ON_ONE_HOST if is_on_one_host else KEEP_ALIVES_A_LEASE


def common_configuration(
    mode: str,
    *,
    connect: tuple[str, ...] = (),
    listen: tuple[str, ...] = (),
    must_connect: bool = False,
) -> dict[str, object]:
    """
    Return what does not depend on keys. Without `must_connect` a node connects in the background,
    for ever: it starts and ends without the other end.
    """
    return {
        'mode': mode,
        'connect': {
            'endpoints': list(connect),
            'timeout_ms': OBSERVER_TIMEOUT_MS if must_connect else -1,
            'exit_on_failure': must_connect,
            'retry': {'period_init_ms': 100, 'period_max_ms': 1000},
        },
        'listen': {'endpoints': list(listen), 'timeout_ms': 0, 'exit_on_failure': True},
        'scouting': {
            # waits for no peer: clients watch the tokens of their servers
            'delay': 0,
            'multicast': {'enabled': False},
            'gossip': {'enabled': False},
        },
    }


def transmission(keep_alives: int = KEEP_ALIVES_A_LEASE) -> dict[str, object]:
    """Return how long a peer may be silent, and what waits for its link."""
    queue = {
        'size': {'data': QUEUED_BATCHES, 'interactive_high': QUEUED_BATCHES},
        'congestion_control': {
            'drop': {
                'wait_before_drop': MESSAGE_WAIT_US,
                'max_wait_before_drop_fragments': FRAGMENTS_WAIT_US,
            }
        },
    }
    return {'lease': LEASE_MS, 'keep_alive': keep_alives, 'queue': queue}


def _check_endpoint(endpoint: str, keys: Path | None) -> None:
    if not ENDPOINT.fullmatch(endpoint):
        raise UserError(
            f'{endpoint!r} is not a Zenoh endpoint; give PROTOCOL/HOST:PORT with tcp, tls or '
            'quic, such as tcp/192.168.1.5:7447'
        )
    if endpoint.startswith(ENCRYPTED) and not keys:
        raise UserError(f'{endpoint} needs zenoh_keys, the folder with the keys of this machine')
    if keys and not endpoint.startswith(ENCRYPTED):
        raise UserError(
            f'{endpoint} is not encrypted, and zenoh_keys is set; use tls/ or quic/, or set no '
            'keys'
        )


def region_name(common_name: str) -> str:
    """
    Return the Zenoh region of one key. A Zenoh router forwards nothing between two peers of one
    region: it takes them to be linked.
    """
    return hashlib.blake2s(common_name.encode(), digest_size=8).hexdigest()


def tls_configuration(folder: Path) -> dict[str, object]:
    """Return the part of the keys; both ends of a link show a certificate."""
    certificate, key = str(folder / CERTIFICATE), str(folder / PRIVATE_KEY)
    return {
        'root_ca_certificate': str(folder / CA),
        'enable_mtls': True,
        'verify_name_on_connect': True,
        'listen_certificate': certificate,
        'listen_private_key': key,
        'connect_certificate': certificate,
        'connect_private_key': key,
    }


def _access(folder: Path, *, is_listening: bool) -> dict[str, object]:
    """Return the access control of a server or router; robots have none."""
    file = folder / ACCESS
    try:
        rules = json.loads(file.read_bytes())
        if not (isinstance(rules, dict) and rules.get('default_permission') == 'deny'):
            raise ValueError
    except FileNotFoundError:
        if not is_listening:
            return {}
        raise UserError(
            f'{file} is missing: zenoh_listen would let every key of the site do everything; '
            'copy the folder that `lerobot-serve keys` made for this server or router'
        ) from None
    except OSError as error:
        raise UserError(f'{file}: {error.strerror}') from None
    except ValueError:
        raise UserError(
            f'{file} is not an access file; copy the folder that `lerobot-serve keys` made again'
        ) from None
    return {'access_control': rules}
