# SPDX-License-Identifier: Apache-2.0
"""What callers give to `connect` and `open`, checked. Pure, but for the names of this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
import math
import os
from pathlib import Path
import secrets
import socket
from typing import TypedDict

from lerobot_serve.client.errors import WrongSettings
from lerobot_serve.client.gateway_address import (
    caller_name,
    check_not_given,
    gateway_address,
    GatewayAddress,
    is_gateway,
    PLAIN,
)
from lerobot_serve.client.results import PolicyInfo
from lerobot_serve.client.session.state import SessionSettings
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.contract.names import (
    file_name,
    is_over_zenoh,
    is_printable,
    is_topic,
    node_name,
)
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.types import KeyValue
from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.credentials import check_credentials
from lerobot_serve.zenoh.settings import ZenohSettings

DEFAULT_ENDPOINT = 'tcp/127.0.0.1:7447'
DEFAULT_SITE = 'default'
DEFAULT_TIMEOUT_S, LONGEST_TIMEOUT_S = 5.0, 3600.0
# where neither caller nor policy says
DEFAULT_FPS = 30.0
ROBOT_KEY = 'robot.'
# the audit recognises sessions without a cage by it; keys speak for the name alone
CLIENT_PREFIX = 'client/'
# for the trace: who called
TAGS = (('caller', 'lerobot_serve.client'), ('cage', 'none'))


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Where the server is, and the name of this client."""

    server: str
    # one of both
    zenoh: ZenohSettings | None
    client_id: str
    timeout_s: float
    # keys speak for this name alone
    is_name_fixed: bool
    gateway: GatewayAddress | None = None
    local_path: bool = True
    keep_memory: bool = True

    def session_name(self, used: Iterable[str], given: str = '') -> str:
        """
        Return the client id of a session: the given one, or a free one. Raises WrongSettings where
        keys allow another one alone.
        """
        taken = set(used)
        wanted = prefixed(given) if given and not self.is_name_fixed else given or self.client_id
        if self.is_name_fixed and (wanted != self.client_id or wanted in taken):
            raise WrongSettings(
                f'the keys speak for {self.client_id} alone',
                'close its session, or make keys with another name for a second client',
            )
        if given or wanted not in taken:
            return wanted
        number = next(n for n in range(2, len(taken) + 3) if f'{wanted}.{n}' not in taken)
        return f'{wanted}.{number}'


class ServerOptions(TypedDict, total=False):
    """The options of PolicyClient.connect, which tells what they mean."""

    endpoints: str | Sequence[str]
    site: str
    keys: str | Path | None
    client_id: str
    timeout_s: float
    token: str
    tls_ca: str | Path | None
    local_path: bool
    keep_memory: bool


class SessionOptions(TypedDict, total=False):
    """What PolicyClient.open asks for, which tells what it means."""

    state_names: Sequence[str] | None
    action_names: Sequence[str] | None
    cameras: Sequence[str] | None
    fps: float | None
    task: str
    policy: str
    codec: str
    jpeg_quality: int
    tags: Sequence[tuple[str, str]]


def client_settings(
    server: str,
    endpoints: str | Sequence[str] = DEFAULT_ENDPOINT,
    site: str = DEFAULT_SITE,
    keys: str | Path | None = None,
    client_id: str = '',
    timeout_s: float = DEFAULT_TIMEOUT_S,
    token: str = '',
    tls_ca: str | Path | None = None,
    local_path: bool = True,
    keep_memory: bool = True,
) -> ClientSettings:
    """Return checked settings. Raises WrongSettings."""
    connect = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
    if is_gateway(server):
        others = {'endpoints': connect != (DEFAULT_ENDPOINT,), 'site': site != DEFAULT_SITE}
        remedy = 'leave it out for a gateway'
        check_not_given({**others, 'keys': keys}, 'a server over Zenoh', remedy)
        gateway = gateway_address(server, token, tls_ca)
        given = prefixed(client_id or default_client_id())
        caller_name(given, CLIENT_PREFIX)
        limit_s = checked_timeout(timeout_s)
        return ClientSettings(
            gateway.url, None, given, limit_s, False, gateway, keep_memory=keep_memory
        )
    remedy = f"leave it out, or connect to a gateway: '{PLAIN}://HOST:PORT'"
    check_not_given({'token': token, 'tls_ca': tls_ca}, 'a gateway', remedy)
    if gateways := [each for each in connect if is_gateway(each)]:
        raise WrongSettings(
            f'endpoints has {gateways[0]}, the address of a gateway',
            f"give it as the first argument: connect('{gateways[0]}')",
        )
    name = node_name(server) if is_over_zenoh(server) else server
    name = name if name.startswith('/') else f'/{name}'
    if not is_topic(name):
        raise WrongSettings(
            f'server is {server!r}', 'give the name of a node, such as policy_router'
        )
    if not connect:
        raise WrongSettings('endpoints is empty', f'give one, such as {DEFAULT_ENDPOINT}')
    zenoh = ZenohSettings(site, connect, keys=Path(keys) if keys else None)
    given = prefixed(client_id or default_client_id())
    if zenoh.keys:
        of_keys = key_name(zenoh.keys)
        if client_id and file_name(client_id) != of_keys:
            raise WrongSettings(
                f'client_id is {client_id!r}, and {keys} speaks for {of_keys}',
                'leave client_id empty, or give the keys of that name',
            )
        given = client_id or of_keys
    if not (given.strip() and is_printable(given, ID_LIMIT)):
        raise WrongSettings(
            f'client_id is {given[:80]!r}', f'give a printable name of at most {ID_LIMIT} bytes'
        )
    limit_s = checked_timeout(timeout_s)
    return ClientSettings(
        name,
        zenoh,
        given,
        limit_s,
        bool(keys),
        local_path=local_path,
        keep_memory=keep_memory,
    )


def key_name(keys: Path) -> str:
    """Return the name that keys speak for. Raises WrongSettings."""
    try:
        common_name = check_credentials(keys, may_listen=False).common_name
    except UserError as error:
        raise WrongSettings(str(error), '') from None
    if not common_name.startswith(ROBOT_KEY):
        raise WrongSettings(
            f'{keys} are the keys of {common_name}',
            'a client needs those of a robot: lerobot-serve keys robot NAME',
        )
    return common_name.removeprefix(ROBOT_KEY).partition('~')[0]


def default_client_id() -> str:
    """Return a name that no other process has."""
    return f'{socket.gethostname()[:40]}.{os.getpid()}.{secrets.token_hex(3)}'


def prefixed(client_id: str) -> str:
    """Return the name of a session without a cage."""
    return client_id if client_id.startswith(CLIENT_PREFIX) else CLIENT_PREFIX + client_id


def checked_timeout(timeout_s: float) -> float:
    """Return a timeout. Raises WrongSettings."""
    if not (math.isfinite(timeout_s) and 0 < timeout_s <= LONGEST_TIMEOUT_S):
        raise WrongSettings(
            f'timeout_s is {timeout_s!r}',
            f'give seconds above 0, at most {LONGEST_TIMEOUT_S:g}: every wait is bounded',
        )
    return float(timeout_s)


def session_settings(
    info: PolicyInfo,
    client_id: str,
    timeout_s: float,
    *,
    state_names: Sequence[str] | None = None,
    action_names: Sequence[str] | None = None,
    cameras: Sequence[str] | None = None,
    fps: float | None = None,
    task: str = '',
    policy: str = '',
    codec: str = 'raw',
    jpeg_quality: int = 90,
    tags: Sequence[tuple[str, str]] = (),
) -> SessionSettings:
    """Return checked settings; None stands for what the policy has. Raises WrongSettings."""
    if codec not in ('raw', 'jpeg'):
        raise WrongSettings(f'codec is {codec!r}', "give 'raw' or 'jpeg'")
    if not 1 <= jpeg_quality <= 100:
        raise WrongSettings(f'jpeg_quality is {jpeg_quality!r}', 'give 1 to 100')
    known = {camera.name: camera for camera in info.cameras}
    names = tuple(known) if cameras is None else tuple(cameras)
    terms = OpenSessionRequest(
        client_id=client_id,
        # distinguishes this process from another one with the same client_id
        instance=secrets.randbits(63),
        state_names=info.state_names if state_names is None else tuple(state_names),
        action_names=info.action_names if action_names is None else tuple(action_names),
        cameras=tuple(
            CameraSpec(name, channels=known[name].channels if name in known else 3)
            for name in names
        ),
        fps=info.control_hz or DEFAULT_FPS if fps is None else fps,
        robot_type='python client',
        policy=policy,
        task=task,
        codec=Codec.named(codec),
        reply_deadline_s=checked_timeout(timeout_s),
        tags=tuple(KeyValue(*tag) for tag in (*TAGS, *tags)),
    )
    return SessionSettings(terms, jpeg_quality)
