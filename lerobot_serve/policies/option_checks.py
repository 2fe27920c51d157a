# SPDX-License-Identifier: Apache-2.0
"""
Compare the load options with what the policy declares. Any thread.

No given option is ignored: it is used or refused.
"""

from __future__ import annotations

from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError


def check_options_match(options: LoadOptions, own: PolicyDescription) -> None:
    """Raise PolicyError if given names or rate differ from those of the policy."""
    for name in ('state_names', 'action_names', 'trained_fps'):
        given, actual = getattr(options, name), getattr(own, name)
        if given and given != actual:
            raise PolicyError(
                f'{name} is set to {_text(given)}, but the {own.policy_type} policy has '
                f'{_text(actual)}; leave it empty, or serve another policy'
            )


def check_no_lerobot_options(options: LoadOptions, kind: str) -> None:
    """Raise PolicyError for dtype or trusted_packages, which are for LeRobot policies."""
    if options.dtype:
        raise PolicyError(
            f'a policy of the kind {kind} computes in the precision of its export; leave '
            f'dtype empty, got {options.dtype!r}'
        )
    if options.trusted_packages:
        raise PolicyError(
            f'trusted_packages is for LeRobot policies, and the kind of this one is {kind}; '
            f'leave it empty, got {list(options.trusted_packages)}'
        )


def check_no_torch_options(options: LoadOptions, kind: str) -> None:
    """Raise PolicyError for options that only torch supports."""
    check_no_lerobot_options(options, kind)
    if options.device != 'cpu':
        raise PolicyError(f"a {kind} policy runs only on the device 'cpu', got {options.device!r}")
    if options.cpu_threads:
        raise PolicyError(
            f'a {kind} policy computes in one thread; leave cpu_threads at 0, '
            f'got {options.cpu_threads}'
        )


def _text(value: tuple[str, ...] | float) -> str:
    return f'{value:g}' if isinstance(value, float) else str(list(value))
