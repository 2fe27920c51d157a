# SPDX-License-Identifier: Apache-2.0
"""
Determine which LeRobot a checkpoint needs, from its settings and processor steps.

LeRobot writes no version into its files, but each setting and step has a first version, and one
that does not know it fails. LeRobot is not imported. Plain data, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
import re
import sys
from typing import Any

from lerobot_serve.policies.base import PolicyError

Version = tuple[int, int, int]
# the last LeRobot for Python 3.10 and 3.11; all later ones need FIRST_PYTHON
LAST_OF_OLD_PYTHON: Version = (0, 4, 4)
FIRST_PYTHON = (3, 12)
# the first version that knows a setting, where that is later than LAST_OF_OLD_PYTHON
RELATIVE_ACTIONS: dict[str, Version] = dict.fromkeys(
    ('use_relative_actions', 'relative_exclude_joints', 'action_feature_names'), (0, 5, 1)
)
ANY_TYPE: dict[str, Version] = {'pretrained_revision': (0, 6, 0)}
SETTINGS: dict[str, dict[str, Version]] = {
    'diffusion': {'gradient_checkpointing': (0, 6, 1)},
    'pi0': RELATIVE_ACTIONS,
    'pi05': {
        **RELATIVE_ACTIONS,
        **dict.fromkeys(
            (
                'rtc_training_max_delay',
                'use_visual_memory',
                'use_proprioceptive_memory',
                'memory_frames',
                'memory_stride',
                'memory_temporal_attention_every',
            ),
            (0, 6, 2),
        ),
    },
}
RTC_SETTINGS: dict[str, Version] = {'mode': (0, 6, 2)}
STEPS: dict[str, Version] = {
    'absolute_actions_processor': (0, 5, 1),
    'relative_actions_processor': (0, 6, 0),
}


def check_version(policy_type: str, config: Mapping[str, Any], where: str) -> None:
    """
    Raise PolicyError for a checkpoint that needs a later LeRobot than the installed one.

    Without LeRobot nothing is checked: the files may be read on another machine than the server.
    """
    needed, name = max(_settings(policy_type, config), default=(LAST_OF_OLD_PYTHON, ''))
    check_known(where, name, needed)


def check_known(where: str, name: str, needed: Version) -> None:
    """Raise PolicyError for something that only a later LeRobot than the installed one knows."""
    installed = installed_version()
    if installed is not None and installed < needed:
        raise too_new(where, name, needed)


def check_registered_step(name: str, is_registered: bool) -> None:
    """Raise PolicyError for a step of a later LeRobot that the installed one does not register."""
    if name in STEPS and not is_registered:
        raise too_new('the processors', name, STEPS[name])


def too_new(where: str, name: str, needed: Version) -> PolicyError:
    """Return the error for a setting or step that the installed LeRobot does not know."""
    return PolicyError(
        f'{where}: this checkpoint was written by LeRobot {_text(needed)} or newer (it has '
        f'{name!r}), and the installed LeRobot {_text(installed_version() or ())} cannot read '
        f'it; {_remedy(needed)}'
    )


@cache
def installed_version() -> Version | None:
    """Return the version of the installed LeRobot, None without one."""
    try:
        found = re.match(r'(\d+)\.(\d+)\.(\d+)', metadata.version('lerobot'))
    except metadata.PackageNotFoundError:
        return None
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _settings(policy_type: str, config: Mapping[str, Any]) -> Iterator[tuple[Version, str]]:
    """Yield the first version of each setting that has one, with its name."""
    known = ANY_TYPE | SETTINGS.get(policy_type, {})
    yield from ((known[name], name) for name in config if name in known)
    rtc = config.get('rtc_config')
    if isinstance(rtc, dict):
        yield from ((RTC_SETTINGS[name], name) for name in rtc if name in RTC_SETTINGS)


def _remedy(needed: Version) -> str:
    if sys.version_info[:2] < FIRST_PYTHON:
        return 'serve it with Python 3.12: PYTHON=python3.12 make shell'
    return f'install LeRobot {_text(needed)} or newer where the policy server runs'


def _text(version: tuple[int, ...]) -> str:
    return '.'.join(map(str, version))
