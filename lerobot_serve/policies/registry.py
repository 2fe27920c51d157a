# SPDX-License-Identifier: Apache-2.0
"""Find and load a policy by its kind, from this and other installed packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from lerobot_serve.policies.base import LoadOptions, Policy, PolicyError
from lerobot_serve.policies.error_text import one_line

GROUP = 'lerobot_serve.policies'
# of the remote kinds: module -> package
OF_MODULES = {'aiohttp': 'aiohttp', 'grpc': 'grpcio', 'msgpack': 'msgpack', 'zmq': 'pyzmq'}


def installed_kinds() -> list[str]:
    """Return the installed policy kinds."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load(kind: str, options: LoadOptions) -> Policy:
    """Load the policy that `options` describe. Raises PolicyError."""
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            try:
                loader = entry.load()
            except ImportError as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {error}; install its requirements '
                    f'(python3 -m pip install {_requirements(error)})'
                ) from error
            except Exception as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {one_line(error)}'
                ) from error
            return _load(loader, kind, options)
    raise PolicyError(
        f'there is no policy kind {kind!r}; installed are {", ".join(installed_kinds()) or "none"}'
    )


def _requirements(error: ImportError) -> str:
    """Return the packages to install: of the kinds with weights, or the one that is missing."""
    return OF_MODULES.get((error.name or '').split('.')[0], 'torch safetensors')


def _load(loader: Callable[[LoadOptions], Policy], kind: str, options: LoadOptions) -> Policy:
    """Call the loader. Raises PolicyError."""
    try:
        return loader(options)
    except PolicyError:
        raise
    except Exception as error:
        # code of another package may raise any error
        raise PolicyError(
            f'policy kind {kind!r} cannot load {options.path!r}: {one_line(error)}'
        ) from error
