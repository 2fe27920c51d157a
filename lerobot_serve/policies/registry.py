"""Finding a policy by its kind, among ours and those that other packages bring."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from lerobot_serve.policies.base import LoadOptions, Policy, PolicyError
from lerobot_serve.policies.error_text import one_line

GROUP = 'lerobot_serve.policies'


def installed_kinds() -> list[str]:
    """Return the kinds of policy that are installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load(kind: str, loading: LoadOptions) -> Policy:
    """Return the policy that `loading` describes. Raises PolicyError."""
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            try:
                loader = entry.load()
            except ImportError as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {error}; install what it needs '
                    '(python3 -m pip install torch safetensors)'
                ) from error
            except Exception as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {one_line(error)}'
                ) from error
            return _load(loader, kind, loading)
    raise PolicyError(
        f'there is no policy kind {kind!r}; installed are {", ".join(installed_kinds()) or "none"}'
    )


def _load(loader: Callable[[LoadOptions], Policy], kind: str, loading: LoadOptions) -> Policy:
    """Return what the loader makes. Raises PolicyError."""
    try:
        return loader(loading)
    except PolicyError:
        raise
    except Exception as error:
        # the code of another package: nobody knows what it raises
        raise PolicyError(
            f'policy kind {kind!r} cannot load {loading.path!r}: {one_line(error)}'
        ) from error
