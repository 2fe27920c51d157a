# SPDX-License-Identifier: Apache-2.0
"""
Doors: one package for each protocol, imported only when its door is asked for.

Each package has a class that is made with the gateway, an exposure and the settings of this door;
it raises UserError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from lerobot_serve.errors import UserError
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.door_parameters import DoorEntry, DOORS, EndpointSettings


class Endpoint:
    """A server of one protocol. The event loop calls."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: EndpointSettings) -> None:
        self._gateway, self._exposure, self._settings = gateway, exposure, settings
        self._on_refused = partial(gateway.on_refused, exposure.door)

    @property
    def address(self) -> str:
        """Where callers reach it once it has started, such as http://127.0.0.1:8700."""
        raise NotImplementedError

    async def start(self) -> None:
        """Listen. Raises UserError for an address that cannot be used."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Send the last replies, end the connections, listen no more. May be called twice."""
        raise NotImplementedError


MakeDoor = Callable[[Gateway, Exposure, EndpointSettings], Endpoint]


def load_door(name: str, table: Mapping[str, DoorEntry] = DOORS) -> MakeDoor:
    """
    Return the class of a door. Raises UserError for an unknown door and for one whose library
    is missing.
    """
    if name not in table:
        raise UserError(f'{name!r} is not a door; there are {", ".join(table)}')
    entry = table[name]
    try:
        found: MakeDoor = getattr(import_module(entry.module), entry.endpoint)
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
