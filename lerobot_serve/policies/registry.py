"""Finding a policy by its kind, among ours and those that other packages bring."""

from __future__ import annotations

from importlib.metadata import entry_points

from lerobot_serve.policies.base import Policy, PolicyError

GROUP = 'lerobot_serve.policies'


def kinds() -> list[str]:
    """Return the kinds of policy that are installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load(kind: str, path: str, device: str) -> Policy:
    """Return the policy at `path`. Raises PolicyError."""
    for entry in entry_points(group=GROUP):
        if entry.name == kind:
            try:
                loader = entry.load()
            except ImportError as error:
                raise PolicyError(
                    f'policy kind {kind!r} cannot be used here: {error}; install what it needs '
                    '(python3 -m pip install torch safetensors)'
                ) from error
            return loader(path, device)
    raise PolicyError(
        f'there is no policy kind {kind!r}; installed are {", ".join(kinds()) or "none"}'
    )
