"""Finding a policy by its kind, among ours and those that other packages bring."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from lerobot_serve.policies.base import Loading, Policy, PolicyError
from lerobot_serve.policies.failure import in_one_line

GROUP = 'lerobot_serve.policies'


def kinds() -> list[str]:
    """Return the kinds of policy that are installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load(kind: str, loading: Loading) -> Policy:
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
                    f'policy kind {kind!r} cannot be used here: {in_one_line(error)}'
                ) from error
            return _loaded(loader, kind, loading)
    raise PolicyError(
        f'there is no policy kind {kind!r}; installed are {", ".join(kinds()) or "none"}'
    )


def _loaded(loader: Callable[[Loading], Policy], kind: str, loading: Loading) -> Policy:
    """Return what the loader makes. Raises PolicyError."""
    try:
        return loader(loading)
    except PolicyError:
        raise
    except Exception as error:
        # the code of another package: nobody knows what it raises
        raise PolicyError(
            f'policy kind {kind!r} cannot load {loading.path!r}: {in_one_line(error)}'
        ) from error
