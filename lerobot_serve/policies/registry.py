# SPDX-License-Identifier: Apache-2.0
"""Find and load a policy by its kind, from this and other installed packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from lerobot_serve.policies.base import LoadOptions, Policy, PolicyError
from lerobot_serve.policies.error_text import is_library_error, one_line
from lerobot_serve.policies.resources.memory import leave_out_of_collections
from lerobot_serve.requirements import install_command

GROUP = 'lerobot_serve.policies'
# what a kind imports beside the weights' packages
OWN_IMPORTS = ('aiohttp', 'grpc', 'msgpack', 'onnxruntime', 'zmq')
WEIGHTS = ('torch', 'safetensors')


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
                    f'({_install_command(error)})'
                ) from error
            except Exception as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {one_line(error)}'
                ) from error
            return _load(loader, kind, options)
    raise PolicyError(
        f'there is no policy kind {kind!r}; installed are {", ".join(installed_kinds()) or "none"}'
    )


def _install_command(error: ImportError) -> str:
    """Return the command that installs what is missing, or else what kinds with weights need."""
    module = (error.name or '').split('.')[0]
    return install_command(module) if module in OWN_IMPORTS else install_command(*WEIGHTS)


def _load(loader: Callable[[LoadOptions], Policy], kind: str, options: LoadOptions) -> Policy:
    """Call the loader. Raises PolicyError."""
    leave_out_of_collections(kind)
    try:
        return loader(options)
    except PolicyError:
        raise
    except BaseException as error:
        # code of another package may raise any error
        if not is_library_error(error):
            raise
        raise PolicyError(
            f'policy kind {kind!r} cannot load {options.path!r}: {one_line(error)}'
        ) from error
