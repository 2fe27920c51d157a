# SPDX-License-Identifier: Apache-2.0
"""What an outage meant to robots, read from the commands they were given. Plain; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.results.report import Case


@dataclass(frozen=True, slots=True)
class RecordedCommand:
    """
    One command, by the clock of its robot; `seen_s` is when the observation was made that the
    policy answered with it, None for a step that the edge itself took.
    """

    at_s: float
    seen_s: float | None = None
    episode_id: str = ''


@dataclass(frozen=True, slots=True)
class Outage:
    """
    next_chunk_ms        from the kill to the first action on an observation made after it
    without_policy_ms    the longest time from one action of the policy to the next in an episode
    between_episodes_ms  the same from an episode to the next one, 0 when none began
    without_command_ms   the longest time without any command
    """

    next_chunk_ms: float
    without_policy_ms: float
    between_episodes_ms: float
    without_command_ms: float


# of each robot: its outage, and how often it stalled
KillSamples = tuple[list[Outage], list[int]]


def is_over(command: RecordedCommand, killed_s: float) -> bool:
    """Whether it is an action that somebody answered who was asked after the kill."""
    return command.seen_s is not None and command.seen_s > killed_s


def find_outage(commands: Sequence[RecordedCommand], killed_s: float) -> Outage | None:
    """Return what a kill meant, None while it is not over or nothing came before it."""
    before = [each for each in commands if each.at_s <= killed_s]
    end = next((each for each in commands if is_over(each, killed_s)), None)
    if end is None or not any(each.seen_s for each in before):
        return None
    # from the last action before the kill, and from the last command
    last_s = max(each.at_s for each in before if each.seen_s)
    during = [each for each in commands if last_s <= each.at_s <= end.at_s]
    played = list(pairwise(each for each in during if each.seen_s))
    within = [pair for pair in played if pair[0].episode_id == pair[1].episode_id]
    return Outage(
        1000 * (end.at_s - killed_s),
        longest_ms(within),
        longest_ms([pair for pair in played if pair not in within]),
        longest_ms(list(pairwise(during))),
    )


def longest_ms(pairs: Sequence[tuple[RecordedCommand, RecordedCommand]]) -> float:
    """Return the longest time from one command to the next, 0 without any."""
    return 1000 * max((after.at_s - before.at_s for before, after in pairs), default=0.0)


def describe(
    name: str,
    kills: Sequence[KillSamples],
    *,
    may_stall: bool,
    noticed_ms: Sequence[float] = (),
) -> Case:
    """Return the outages of all kills; unless robots `may_stall`, it is a goal not to."""
    lived = [each for outages, _ in kills for each in outages]
    stalls = [count for _, counts in kills for count in counts]
    counts = {
        'kills': len(kills),
        'robots': len(kills[0][0]),
        'robots_stalled': sum(count > 0 for count in stalls),
        'stalls': sum(stalls),
    }
    series_ms = {'from the kill to the next chunk': [each.next_chunk_ms for each in lived]}
    if counts['robots'] > 1:
        series_ms['the same, slowest robot of each kill'] = [
            max(each.next_chunk_ms for each in outages) for outages, _ in kills
        ]
    if noticed_ms:
        series_ms['from the kill until the published state shows it'] = list(noticed_ms)
    series_ms |= {
        'longest time between two actions of the policy': [e.without_policy_ms for e in lived],
        'the same, from one episode to the next': [
            each.between_episodes_ms for each in lived if each.between_episodes_ms
        ],
        'longest time between two commands': [each.without_command_ms for each in lived],
    }
    goals = {} if may_stall else {'no robot stalls': not counts['robots_stalled']}
    return Case(name, counts=counts, series_ms=series_ms, goals=goals)
