# SPDX-License-Identifier: Apache-2.0
"""The parameters of the local path, which are the same in every node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.local.access import access_of_group
from lerobot_serve.local.endpoint import LocalEndpoint
from lerobot_serve.local.path import LocalPath, MakePath, OnGone
from lerobot_serve.parameters import parameter


def local_path(default: bool, help_text: str) -> bool:
    """Return the parameter `local_path`."""
    return parameter(default, f'{help_text}; see docs/local.md')


def local_group() -> str:
    """Return the parameter `local_group`."""
    return parameter(
        '',
        'group of this host whose processes may use the local path, too; empty: those of the same '
        'user alone',
    )


def local_folder() -> str:
    """Return the parameter `local_folder`."""
    return parameter(
        '',
        'folder for the socket of the local path, which containers share; empty: a socket '
        'without a file',
    )


class PathParameters(Protocol):
    """The parameters of a node, including those of the local path."""

    @property
    def local_path(self) -> bool: ...

    @property
    def local_group(self) -> str: ...


class LocalParameters(PathParameters, Protocol):
    """The parameters of a node that serves."""

    @property
    def local_folder(self) -> str: ...


def local_paths(
    parameters: PathParameters, lifespan_s: float, log: Callable[[str], object]
) -> MakePath | None:
    """Return what makes the paths of a client; None where it uses none. Raises UserError."""
    if not parameters.local_path:
        return None
    access = access_of_group(parameters.local_group)

    def make(on_chunk: Callable[[bytes], None], on_gone: OnGone) -> LocalPath:
        return LocalPath(on_chunk, on_gone, lifespan_s=lifespan_s, access=access, log=log)

    return make


def serve_locally(
    parameters: LocalParameters,
    on_request: Callable[[Raw], None],
    on_drop: Callable[[str], None],
) -> LocalEndpoint | None:
    """Return the local path of a server; None where it offers none. Raises UserError."""
    if not parameters.local_path:
        return None
    access = access_of_group(parameters.local_group)
    return LocalEndpoint(access, on_request, on_drop, parameters.local_folder)
