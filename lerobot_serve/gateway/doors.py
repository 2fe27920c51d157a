# SPDX-License-Identifier: Apache-2.0
"""
The table of doors: one package for each protocol, imported only when its door is asked for.

Each package has a module with `make_door(gateway, exposure, settings) -> Door`, where `settings`
are the parameters of this door by their names without the prefix. It raises UserError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from lerobot_serve.errors import UserError
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.requirements import REQUIREMENTS


class Door(Protocol):
    """A server of one protocol. The event loop calls."""

    @property
    def address(self) -> str:
        """Where callers reach it once it has started, such as http://127.0.0.1:8700."""

    async def start(self) -> None:
        """Listen. Raises UserError for an address that cannot be used."""

    async def stop(self) -> None:
        """Send the last replies, end the connections, listen no more. May be called twice."""


MakeDoor = Callable[[Gateway, Exposure, Mapping[str, Any]], Door]


@dataclass(frozen=True, slots=True)
class DoorEntry:
    """
    A row of the table.

    module    has make_door
    port      default
    protocol  for people
    packages  import name -> pip requirement of the libraries that only this door needs
    """

    module: str
    port: int
    protocol: str
    packages: Mapping[str, str]


def _pinned(*packages: str) -> Mapping[str, str]:
    return {name: REQUIREMENTS[name] for name in packages}


DOORS = {
    'http': DoorEntry('lerobot_serve.gateway.http.door', 8700, 'HTTP /act', _pinned('aiohttp')),
    'openpi': DoorEntry(
        'lerobot_serve.gateway.openpi.door',
        8701,
        'openpi websocket',
        _pinned('aiohttp', 'msgpack'),
    ),
    'lerobot': DoorEntry(
        'lerobot_serve.gateway.lerobot_async.door',
        8702,
        'LeRobot AsyncInference (gRPC)',
        _pinned('grpc'),
    ),
    'policy_service': DoorEntry(
        'lerobot_serve.gateway.policy_service.door',
        8703,
        'PolicyService (gRPC)',
        _pinned('grpc', 'google', 'grpc_health', 'grpc_reflection'),
    ),
    'groot': DoorEntry(
        'lerobot_serve.gateway.groot.door',
        8704,
        'GR00T (ZeroMQ)',
        _pinned('msgpack'),
    ),
}


def load_door(name: str, table: Mapping[str, DoorEntry] = DOORS) -> MakeDoor:
    """
    Return `make_door` of a door. Raises UserError for an unknown door and for one whose library
    is missing.
    """
    if name not in table:
        raise UserError(f'{name!r} is no door; there are {", ".join(table)}')
    entry = table[name]
    try:
        found: MakeDoor = import_module(entry.module).make_door
    except ModuleNotFoundError as error:
        raise UserError(_missing(name, entry, error)) from None
    return found


def _missing(name: str, entry: DoorEntry, error: ModuleNotFoundError) -> str:
    """Return what is missing, with the remedy. Raises the error for a fault of this package."""
    wanted = error.name or ''
    package = wanted.partition('.')[0]
    if package == 'lerobot_serve' and not entry.module.startswith(wanted):
        raise error
    if package == 'lerobot_serve':
        return f'the door {name} is not part of this installation; install all of lerobot_serve'
    pins = [pin for known, pin in entry.packages.items() if known.partition('.')[0] == package]
    how = f'python3 -m pip install {pins[0]}' if pins else 'install it'
    return f'the door {name} needs the Python package {package}, which is missing; {how}'
