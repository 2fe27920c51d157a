# SPDX-License-Identifier: Apache-2.0
"""
The newest incidents, and which change of a state is one: a table for each kind of state. The poll
thread.

A table has the new states that matter; the old state decides only whether it is a change, and
whether a good state ends a bad one. What repeats is counted into one incident, so that a robot
whose cage trips in each step does not push all others out.
"""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import count
from typing import NamedTuple

from lerobot_serve.contract.records import EdgeState
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.dashboard.document.fleet_document import bounded, Json
from lerobot_serve.tools.dashboard.evidence import IncidentPlace

ERROR, WARNING, INFO = 'error', 'warning', 'info'


class IncidentFinding(NamedTuple):
    """What happened: kind and severity as the page shows them, and a text."""

    kind: str
    severity: str
    text: str


# state of an edge -> kind, severity, text; DEGRADED still moves by its queue
EDGE = {
    'STALLED': ('stall', ERROR, 'stalled: the queue holds no action that may be executed'),
    'RECONNECTING': ('server', WARNING, 'lost its session and reopens it'),
    'CONNECTING': ('server', WARNING, 'has no server'),
    'DEAD': ('stall', ERROR, 'gave up; it needs an operator'),
}
STALLED, EDGE_GOOD = EdgeState.State.STALLED, EdgeState.State.STREAMING
# rung -> severity, text; POLICY is the normal one
RUNGS = {
    'RAMP': (WARNING, 'slows down: no fresh actions'),
    'HOLD': (WARNING, 'holds its position: no fresh actions'),
    'REPEAT_LAST': (WARNING, 'repeats its last command: no fresh actions'),
    'ZERO': (WARNING, 'commands zero: no fresh actions'),
    'SAFE_POSE': (WARNING, 'moves to its safe pose: no fresh actions'),
    'INITIAL_POSE': (WARNING, 'moves to its initial pose: no fresh actions'),
    'PERSON': (INFO, 'is commanded by a person'),
    'STOP_SERVICE': (ERROR, 'is stopped by its stop service; only a reset lifts it'),
    'NO_COMMAND': (ERROR, 'gets no command'),
}
# holds whether an episode runs or not
ALWAYS = EdgeState.Rung.STOP_SERVICE
# of slots, replicas and servers; the others are warnings
INFOS = ('HEALTHY', 'DRAINED', 'UNKNOWN', 'READY', 'ACTIVE')
ERRORS = ('UNAVAILABLE', 'BARRED', 'POLICY_MISMATCH', 'FAILED')
# between these two the test moves by itself
QUIET_PHASES = frozenset({CanaryPhase.RUNNING, CanaryPhase.UNDECIDED})


def robot_findings(
    old: EdgeState, new: EdgeState, *, is_settled: bool = True
) -> list[IncidentFinding]:
    """
    Return the incidents between two states of a robot. `is_settled`: its episode has run for a
    while; before, the policy is that of the last chunk of the episode before.
    """
    policy = _policy(old, new) if is_settled else None
    found = (_stall(old, new), _state(old, new), _rung(old, new), _cage(old, new), policy)
    return [each for each in found if each]


def _stall(old: EdgeState, new: EdgeState) -> IncidentFinding | None:
    stalls_now = new.state is STALLED and old.state is not STALLED
    if new.stalls <= old.stalls or stalls_now:
        return None
    # it stalled between two polls, and has gone on
    return IncidentFinding('stall', ERROR, with_reason('stalled for a moment', new.reason))


def _state(old: EdgeState, new: EdgeState) -> IncidentFinding | None:
    if new.state != old.state and new.state.name in EDGE:
        kind, severity, text = EDGE[new.state.name]
        return IncidentFinding(kind, severity, with_reason(text, new.reason))
    if new.state is EDGE_GOOD and old.state.name in EDGE:
        return IncidentFinding(
            EDGE[old.state.name][0], INFO, f'streams again, from {new.server or "a server"}'
        )
    return None


def _rung(old: EdgeState, new: EdgeState) -> IncidentFinding | None:
    if new.rung == old.rung or new.rung.name not in RUNGS:
        return None
    # a pause is a person's, and a teardown follows an episode
    is_expected = new.paused or not new.episode_id
    if is_expected and new.rung is not ALWAYS:
        return None
    severity, text = RUNGS[new.rung.name]
    return IncidentFinding('ladder', severity, with_reason(text, new.reason))


def _cage(old: EdgeState, new: EdgeState) -> IncidentFinding | None:
    trips = new.cage_trips - old.cage_trips
    if trips <= 0:
        # fewer: the edge was restarted
        return None
    commands = '1 command' if trips == 1 else f'{trips} commands'
    return IncidentFinding('cage', INFO, f'the safety cage changed {commands}')


def _policy(old: EdgeState, new: EdgeState) -> IncidentFinding | None:
    is_same_episode = new.episode_id and new.episode_id == old.episode_id
    if not (is_same_episode and old.policy and new.policy and new.policy != old.policy):
        return None
    text = f'its policy changed within an episode: {old.policy} -> {new.policy}'
    return IncidentFinding('policy_changed', WARNING, text)


def state_finding(kind: str, what: str, old: str, new: str, text: str) -> IncidentFinding | None:
    """
    Return the incident between two states of a slot, of a policy server, or of a replica, as its
    router sees it.
    """
    if old == new:
        return None
    severity = INFO if new in INFOS else ERROR if new in ERRORS else WARNING
    return IncidentFinding(kind, severity, with_reason(f'{what}: {old} -> {new}', text))


def rollout_finding(old: CanaryPhase, new: CanaryPhase, text: str) -> IncidentFinding | None:
    """Return the incident between two states of a rollout."""
    if old == new or {old, new} == QUIET_PHASES:
        return None
    words = with_reason(f'rollout: {old.name} -> {new.name}', text)
    if new is CanaryPhase.ROLLED_BACK:
        return IncidentFinding('rollback', ERROR, words)
    return IncidentFinding('rollout', INFO if new in tuple(CanaryPhase) else WARNING, words)


def silence_finding(what: str, *, is_silent: bool, has_publisher: bool) -> IncidentFinding:
    """Return the incident of a source that becomes silent, or is heard of again."""
    if not is_silent:
        return IncidentFinding('silent', INFO, f'{what} is heard of again')
    cause = (
        'it hangs, or its link is down'
        if has_publisher
        else 'its process ended or its link is cut'
    )
    return IncidentFinding('silent', ERROR, f'{what} is silent: {cause}')


def with_reason(text: str, reason: str) -> str:
    return f'{text} ({reason})' if reason else text


KEPT = 200
# the same source, kind and severity within this time is the same incident
REPEAT_MS = 60_000


class Moment(NamedTuple):
    """One moment: on the steady clock, as local time of day, and in UTC."""

    at_ms: int
    of_day: str
    instant: str


# times for people; nothing is measured or compared with them


def time_of_day() -> str:
    """Return the local time of day, for example 18:02:11."""
    return datetime.now().astimezone().strftime('%H:%M:%S')


def instant() -> str:
    """Return date and time in UTC, for example 2026-11-23T18:00:00Z."""
    return datetime.now(timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')


class Incidents:
    """Numbered from 1; rows are replaced, never changed."""

    def __init__(self) -> None:
        self.rows: Json = {}
        self._numbers = count(1)
        # source, kind and severity -> the number of the last one
        self._last: dict[tuple[str, str, str], str] = {}
        self._places: dict[str, IncidentPlace] = {}

    def place(self, number: str) -> IncidentPlace | None:
        """Return where an incident is in traces; None for one that is not there. Any thread."""
        return self._places.get(number)

    def add(self, who: str, finding: IncidentFinding, moment: Moment, client: str = '') -> None:
        """Add an incident; `client` is the name of its robot in traces."""
        key = (who, finding.kind, finding.severity)
        number, rows = self._last.get(key, ''), dict(self.rows)
        last = rows.get(number)
        if last and moment.at_ms - last['at_ms'] < REPEAT_MS:
            times = last.get('count', 1) + 1
            text = bounded(f'{finding.text} ({times} times since {last["at"]})')
            rows[number] = {**last, 'text': text, 'count': times}
        else:
            number = self._last[key] = str(next(self._numbers))
            self._places[number] = IncidentPlace(client, moment.instant)
            rows[number] = {
                'at': moment.of_day,
                'at_ms': moment.at_ms,
                'kind': finding.kind,
                'severity': finding.severity,
                'who': who,
                'text': bounded(finding.text),
            }
        while len(rows) > KEPT:
            # the oldest: rows are in the order of their numbers
            number = next(iter(rows))
            del rows[number], self._places[number]
        if len(self._last) > 2 * KEPT:
            self._last = {k: each for k, each in self._last.items() if each in rows}
        self.rows = rows
