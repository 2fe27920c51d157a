"""
What the operator says of a policy beside what the policy says of itself. Any thread.

Nothing that was given is ignored: it is used, or it is refused.
"""

from __future__ import annotations

from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError


def check_options_match(loading: LoadOptions, own: PolicyDescription) -> None:
    """Raise PolicyError when names or a rate were given that are not the policy's own."""
    for name in ('state_names', 'action_names', 'trained_fps'):
        given, actual = getattr(loading, name), getattr(own, name)
        if given and given != actual:
            raise PolicyError(
                f'{name} is given as {_text(given)}, but the {own.policy_type} policy says '
                f'{_text(actual)}; leave it out, or serve another policy'
            )


def check_no_lerobot_options(loading: LoadOptions, kind: str) -> None:
    """Raise PolicyError for a precision or a package, which only LeRobot's policies have."""
    if loading.dtype:
        raise PolicyError(
            f'a policy of the kind {kind} computes in the precision that it was made with; leave '
            f'dtype empty, got {loading.dtype!r}'
        )
    if loading.trusted_packages:
        raise PolicyError(
            f'trusted_packages is for policies of LeRobot, and this one is of the kind {kind}; '
            f'leave it empty, got {list(loading.trusted_packages)}'
        )


def check_no_torch_options(loading: LoadOptions, kind: str) -> None:
    """Raise PolicyError for what only torch can heed."""
    check_no_lerobot_options(loading, kind)
    if loading.device != 'cpu':
        raise PolicyError(
            f"a {kind} policy runs on the device 'cpu' alone, got {loading.device!r}"
        )
    if loading.cpu_threads:
        raise PolicyError(
            f'a {kind} policy computes in one thread; leave cpu_threads at 0, '
            f'got {loading.cpu_threads}'
        )


def _text(value: tuple[str, ...] | float) -> str:
    return f'{value:g}' if isinstance(value, float) else str(list(value))
