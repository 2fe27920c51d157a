# SPDX-License-Identifier: Apache-2.0
"""
Network profiles: parameter defaults for wired, Wi-Fi and WAN links. Explicit values take
precedence.

`wifi` is the default profile and equals the parameter defaults: it tolerates the gaps of a radio
link and costs a wired robot only a later alarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFAULT_PROFILE = 'wifi'
# share of request_threshold_s after which a missing chunk is an alarm
DEGRADED_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One parameter: its value in each profile (a number, or a bool), and the reason for them."""

    parameter: str
    wired: float
    wifi: float
    wan: float
    reason: str


PROFILE_ROWS = (
    ProfileRow(
        'request_threshold_s', 0.3, 0.5, 1.0,
        'the queue must outlast a round trip with its gaps: 0.2, 0.3 and 0.6 s',
    ),
    ProfileRow(
        'request_timeout_s', 2.0, 5.0, 5.0,
        'a wire loses nothing, so silence means a hanging server; a radio repeats what it lost',
    ),
    ProfileRow(
        'degraded_after_s', 0.2, 0.35, 0.7,
        'above the usual gap of the network, to avoid false alarms; below request_threshold_s, to '
        'precede the stall',
    ),
    ProfileRow(
        'max_action_age_s', 2.0, 3.0, 3.5,
        'as short as the network allows, because a later action has an older observation; a WAN '
        'adds half a second of transit',
    ),
    ProfileRow(
        'jpeg_quality', 95, 90, 80,
        'a wire has bandwidth for images closer to the training data; an uplink of 10 Mbit/s '
        'has not',
    ),
    ProfileRow(
        'downscale', False, False, True,
        'over 10 Mbit/s with 1 % loss the size of a request decides: two images of 480x640 take '
        '184 ms (p99 425), of 224x224 68 ms (p99 287)',
    ),
    ProfileRow(
        'max_offline_s', 30.0, 60.0, 120.0,
        'a server restarts in half a minute; a radio or a provider may take longer',
    ),
    ProfileRow(
        'reconnect_initial_backoff_s', 0.2, 0.5, 1.0,
        'a retry is cheap on a wire; over a WAN each attempt takes longer',
    ),
    ProfileRow(
        'reconnect_max_backoff_s', 5.0, 10.0, 20.0,
        'longest delay from the return of a server to the next attempt; a sixth of max_offline_s',
    ),
)  # fmt: skip

PROFILES: dict[str, dict[str, float]] = {
    name: {row.parameter: getattr(row, name) for row in PROFILE_ROWS}
    for name in ('wired', 'wifi', 'wan')
}


def with_profile(values: dict[str, Any]) -> dict[str, Any]:
    """
    Return `values` merged over the defaults of the profile they name. A shorter
    request_threshold_s also shortens degraded_after_s.

    An unknown profile sets nothing: the parameter check rejects it.
    """
    name = values.get('network_profile', DEFAULT_PROFILE)
    below = dict(PROFILES.get(name, {})) if isinstance(name, str) else {}
    buffer_s = values.get('request_threshold_s')
    if below and isinstance(buffer_s, int | float):
        # an alarm after the stall would be useless
        reachable_s = round(DEGRADED_SHARE * buffer_s, 3)
        below['degraded_after_s'] = min(below['degraded_after_s'], reachable_s)
    return {**below, **values}


def profiles_table() -> str:
    """Return the profiles in Markdown."""
    head = '| parameter | wired | wifi | wan | why |\n|---|---|---|---|---|'
    return '\n'.join([head, *map(_line, PROFILE_ROWS)])


def _line(row: ProfileRow) -> str:
    values = ' | '.join(map(_value, (row.wired, row.wifi, row.wan)))
    return f'| `{row.parameter}` | {values} | {row.reason} |'


def _value(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f'{value:g}'
