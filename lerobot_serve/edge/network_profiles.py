"""
What fits a kind of network: defaults that a profile sets below the parameters that are given.

`wifi` is the default, and its numbers are the defaults of the parameters: it tolerates the gaps of
a radio, costs a wired robot only a later alarm, and is what most robots are on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFAULT_PROFILE = 'wifi'
# share of buffer_time_s after which a missing chunk is an alarm
DEGRADED_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One parameter in every profile, and why the numbers are what they are."""

    parameter: str
    wired: float
    wifi: float
    wan: float
    reason: str


PROFILE_ROWS = (
    ProfileRow(
        'buffer_time_s', 0.3, 0.5, 1.0,
        'what is left when asking must outlast a round trip with its gaps: 0.2, 0.3 and 0.6 s',
    ),
    ProfileRow(
        'request_timeout_s', 2.0, 5.0, 5.0,
        'a wire loses nothing, so silence means a server that hangs; a radio repeats what it lost',
    ),
    ProfileRow(
        'degraded_after_s', 0.2, 0.35, 0.7,
        'above the usual gap of the network, or the alarm would cry wolf; below buffer_time_s, or '
        'it would come after the stall',
    ),
    ProfileRow(
        'max_action_age_s', 2.0, 3.0, 3.5,
        'as short as the network allows: what is played later was seen longer ago; over a WAN '
        'half a second is spent on the way',
    ),
    ProfileRow(
        'jpeg_quality', 95, 90, 80,
        'a wire has room for pictures closer to those the policy was trained on; an uplink of '
        '10 Mbit/s has not',
    ),
    ProfileRow(
        'max_offline_s', 30.0, 60.0, 120.0,
        'a server restarts in half a minute; a radio or a provider may need longer to come back',
    ),
    ProfileRow(
        'reconnect_backoff_s', 0.2, 0.5, 1.0,
        'asking again costs a wire little; over a WAN a question takes longer to be answered',
    ),
    ProfileRow(
        'reconnect_max_backoff_s', 5.0, 10.0, 20.0,
        'how much later than the server a robot may come back; a sixth of max_offline_s',
    ),
)  # fmt: skip

PROFILES: dict[str, dict[str, float]] = {
    name: {row.parameter: getattr(row, name) for row in PROFILE_ROWS}
    for name in ('wired', 'wifi', 'wan')
}


def with_profile(values: dict[str, Any]) -> dict[str, Any]:
    """
    Return `values` above those of the profile that they name. A shorter buffer_time_s alone brings
    a shorter degraded_after_s with it.

    A profile that does not exist sets nothing: the check of the parameter refuses it.
    """
    name = values.get('profile', DEFAULT_PROFILE)
    below = dict(PROFILES.get(name, {})) if isinstance(name, str) else {}
    buffer_s = values.get('buffer_time_s')
    if below and isinstance(buffer_s, int | float):
        # an alarm after the stall would be none
        reachable_s = round(DEGRADED_SHARE * buffer_s, 3)
        below['degraded_after_s'] = min(below['degraded_after_s'], reachable_s)
    return {**below, **values}


def profiles_table() -> str:
    """Return the profiles in Markdown."""
    head = '| parameter | wired | wifi | wan | why |\n|---|---|---|---|---|'
    return '\n'.join([head, *map(_line, PROFILE_ROWS)])


def _line(row: ProfileRow) -> str:
    return f'| `{row.parameter}` | {row.wired:g} | {row.wifi:g} | {row.wan:g} | {row.reason} |'
