# SPDX-License-Identifier: Apache-2.0
"""
The table of doors, and their parameters, which differ from door to door in defaults alone. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TypeVar

from lerobot_serve.parameters import parameter
from lerobot_serve.requirements import REQUIREMENTS

T = TypeVar('T')


@dataclass(frozen=True, slots=True)
class DoorEntry:
    """
    A row of the table.

    module    has the class `endpoint`
    port      default
    protocol  for people
    packages  import name -> pip requirement of the libraries that only this door needs
    """

    module: str
    endpoint: str
    port: int
    protocol: str
    packages: Mapping[str, str]


def _pinned(*packages: str) -> Mapping[str, str]:
    return {name: REQUIREMENTS[name] for name in packages}


DOORS = {
    'http': DoorEntry(
        'lerobot_serve.gateway.http.door', 'HttpDoor', 8700, 'HTTP /act', _pinned('aiohttp')
    ),
    'openpi': DoorEntry(
        'lerobot_serve.gateway.openpi.door',
        'OpenpiDoor',
        8701,
        'openpi websocket',
        _pinned('aiohttp', 'msgpack'),
    ),
    'lerobot': DoorEntry(
        'lerobot_serve.gateway.lerobot_async.door',
        'LeRobotDoor',
        8702,
        'LeRobot AsyncInference (gRPC)',
        _pinned('grpc'),
    ),
    'policy_service': DoorEntry(
        'lerobot_serve.gateway.policy_service.door',
        'PolicyServiceDoor',
        8703,
        'PolicyService (gRPC)',
        _pinned('grpc', 'google', 'grpc_health', 'grpc_reflection'),
    ),
    'groot': DoorEntry(
        'lerobot_serve.gateway.groot.door',
        'GrootDoor',
        8704,
        'GR00T (ZeroMQ)',
        _pinned('msgpack'),
    ),
}

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The settings of one endpoint, by the names of its parameters without the prefix."""

    port: int = parameter(
        0, 'port of the door {door}; 0 takes any free one and logs it', low=0, high=65535
    )
    host: str = parameter(
        '127.0.0.1',
        'address of the door {door}; 0.0.0.0 for all interfaces, with {door}.tokens_file',
    )
    tokens_file: str = parameter(
        '',
        'file with lines NAME TOKEN of the callers that are let in, which only its owner reads; '
        'made with one token where it is missing; empty: callers need no token',
    )
    allow_anyone: bool = parameter(
        False, 'allow {door}.host to be an address of the network without {door}.tokens_file'
    )
    certificate_file: str = parameter(
        '', 'PEM file with the TLS certificate of the door, with {door}.key_file; empty: no TLS'
    )
    key_file: str = parameter('', 'PEM file with the private key of the TLS certificate')
    mapping: str = parameter(
        '',
        'YAML file with the names of callers for cameras, state and actions; empty: their names '
        'are those of the policy',
    )
    action_order_confirmed: bool = parameter(
        False,
        'confirms that the action_features of the robots are in the order of the policy, where '
        'their state names are others; LeRobot sends no names of actions',
    )
    policy_names: tuple[str, ...] = parameter(
        (),
        'further values of pretrained_name_or_path that are accepted, * for any; nothing is '
        'loaded by them; without them a client must name the policy that is served',
    )
    max_message_mb: float = parameter(
        16,
        'largest body or message of a caller; a larger one is refused before it is read',
        unit='MB',
        low=1,
        high=256,
    )
    handshake_timeout_s: float = parameter(
        5.0,
        'longest time until a new connection has greeted as its protocol demands; TLS has as long '
        'before it',
        unit='s',
        low=0.1,
        high=60.0,
    )
    read_timeout_s: float = parameter(
        10.0,
        'longest time from the first to the last byte of a body or message',
        unit='s',
        low=0.1,
        high=3600.0,
    )
    write_timeout_s: float = parameter(
        10.0,
        'longest time that a caller may leave a reply unread before it is disconnected',
        unit='s',
        low=0.1,
        high=3600.0,
    )
    max_connections: int = parameter(
        256, 'maximum number of open connections; further ones are refused', low=1, high=65536
    )
    ping_interval_s: float = parameter(
        20.0,
        'silence after which a caller is pinged; after twice as long it is disconnected',
        unit='s',
        low=0.1,
        high=3600.0,
    )
    language_key: str = parameter(
        'annotation.human.task_description',
        'key of the task in the reply to get_modality_config',
    )

    @property
    def max_message_bytes(self) -> int:
        return int(self.max_message_mb * MEGABYTE)


# those that not every door has
OWNERS = {
    'action_order_confirmed': ('lerobot',),
    'policy_names': ('lerobot',),
    'handshake_timeout_s': ('groot',),
    'read_timeout_s': ('http', 'openpi', 'groot'),
    'write_timeout_s': ('http', 'openpi', 'groot'),
    'ping_interval_s': ('openpi',),
    'language_key': ('groot',),
}
DEFAULTS = {
    **{f'{name}.port': entry.port for name, entry in DOORS.items()},
    'lerobot.max_message_mb': 32,
    'policy_service.max_message_mb': 32,
}


def with_parameters_of_doors(parameters: type[T]) -> type[T]:
    """Return a class, not yet a dataclass, with the field DOOR_NAME for each DOOR.NAME."""
    for door in DOORS:
        for entry in fields(EndpointSettings):
            if door in OWNERS.get(entry.name, DOORS):
                full = f'{door}.{entry.name}'
                default = DEFAULTS.get(full, entry.default)
                given = {**entry.metadata, 'name': full}
                text = given.pop('text').format(door=door)
                parameters.__annotations__[f'{door}_{entry.name}'] = type(default)
                setattr(parameters, f'{door}_{entry.name}', parameter(default, text, **given))
    return parameters
