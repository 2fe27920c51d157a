# SPDX-License-Identifier: Apache-2.0
"""
What a survey of a link has found, and the report of it: who takes part, by the keys, what each key
has carried, and how servers respond. Pure but for the lock of a counter; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
import re
import threading
from typing import Any

from lerobot_serve.contract.names import KEY_ROOT, SEGMENT
from lerobot_serve.telemetry.durations import percentile
from lerobot_serve.tools.output.report import Part, Report, Table
from lerobot_serve.zenoh.keys import Role

ALIVE = 'alive'
CLIENT_KEY = re.compile(
    f'{KEY_ROOT}/(?P<site>{SEGMENT})/(?P<server>{SEGMENT})/'
    f'(?P<role>{"|".join(Role)})/(?P<client>{SEGMENT})/.+'
)
INSTANCE_KEY = re.compile(f'{KEY_ROOT}/{SEGMENT}/{SEGMENT}/instance/{SEGMENT}')
SERVER_KEY = re.compile(f'{KEY_ROOT}/(?P<site>{SEGMENT})/(?P<server>{SEGMENT})/.+')
BYTES_PER_KB = 1000.0
NONE = '-'
HEADS = ('participant', 'client of', 'role', 'token', 'get_status p50', 'p99 [ms]', 'policy')
# policy_type in the status of a router
ROUTER = 'router'


@dataclass(slots=True)
class ServerAnswers:
    """The responses of one server to get_status; `is_heard`: it publishes its status."""

    round_trips_ms: list[float] = field(default_factory=list)
    policy: str = ''
    policy_type: str = ''
    text: str = ''
    # why the last query had no response
    error: str = ''
    is_heard: bool = False

    def percentile_ms(self, percent: float) -> float | None:
        """Return a percentile of the round trips; None without a response."""
        return percentile(self.round_trips_ms, percent)


@dataclass(frozen=True, slots=True)
class LinkSurvey:
    """
    `problems` has a sentence with a remedy for each endpoint that was not reached, `conflicts` one
    for each name that several servers have.
    """

    site: str
    duration_s: float
    reached: tuple[str, ...]
    problems: dict[str, str]
    conflicts: tuple[str, ...] = ()
    # with a liveliness token, and those whose messages were seen without one
    alive: frozenset[Participant] = frozenset()
    seen: frozenset[Participant] = frozenset()
    answers: dict[str, ServerAnswers] = field(default_factory=dict)
    rates: Sequence[KeyRate] = ()

    @property
    def problem_texts(self) -> list[str]:
        """All problems and conflicts."""
        return [*self.problems.values(), *self.conflicts]

    @property
    def participants(self) -> list[Participant]:
        """All of this site, sorted: each server before its clients."""
        return sorted(p for p in self.alive | self.seen if p.site == self.site)

    @property
    def servers(self) -> list[Participant]:
        """The servers and routers of this site that have a token."""
        return [p for p in self.participants if p.is_server and p in self.alive]

    @property
    def failure(self) -> str:
        """Why nothing was found, with the remedy; empty when a server responds."""
        if not self.reached:
            return '; '.join(self.problems.values())
        if not self.servers:
            return self._nobody()
        found = [self.answers[server.server] for server in self.servers]
        if any(each.round_trips_ms or each.is_heard for each in found):
            return ''
        return f'no server responds: {found[0].error}'

    def _nobody(self) -> str:
        where = ', '.join(self.reached)
        others = sorted({p.site for p in self.alive} - {self.site})
        if others:
            return (
                f'{where} has no server of the site {self.site}; it has the site '
                f'{", ".join(others)}: give it as --site'
            )
        return (
            f'{where} is reached, and no server or router is there; start one with zenoh_listen '
            'or zenoh_connect; under access control name it with --server, and check what the '
            'keys of --keys allow'
        )


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """A server or router, or with a `role` one of its clients; names as in keys."""

    site: str
    server: str
    role: str = ''
    client: str = ''

    @property
    def is_server(self) -> bool:
        return not self.role


def participant(key: str) -> Participant | None:
    """Return the owner of a key; None for a key of something else."""
    if match := CLIENT_KEY.fullmatch(key):
        return Participant(match['site'], match['server'], match['role'], match['client'])
    if match := SERVER_KEY.fullmatch(key):
        return Participant(match['site'], match['server'])
    return None


def is_instance(key: str) -> bool:
    """Return whether a key is the one of a process that is a server."""
    return bool(INSTANCE_KEY.fullmatch(key))


def is_token(key: str) -> bool:
    """Return whether a key is the one of a liveliness token."""
    return key.endswith(f'/{ALIVE}')


@dataclass(frozen=True, slots=True, order=True)
class KeyCount:
    """What one key has carried."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class KeyRate:
    """What one key carries."""

    key: str
    messages_per_s: float
    kb_per_s: float


class KeyCounter:
    """Threads of Zenoh count, the caller reads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, KeyCount] = {}

    def count(self, key: str, payload: bytes) -> None:
        """Count one message."""
        with self._lock:
            before = self._counts.get(key, KeyCount())
            self._counts[key] = KeyCount(before.messages + 1, before.size_bytes + len(payload))

    def counts(self) -> dict[str, KeyCount]:
        """Return what each key has carried so far."""
        with self._lock:
            return dict(self._counts)


def key_rates(counters: Iterable[Mapping[str, KeyCount]], duration_s: float) -> list[KeyRate]:
    """
    Return the rates, sorted by key. A message may pass several endpoints; each is counted there,
    so the endpoint that has seen most of a key counts.
    """
    most: dict[str, KeyCount] = {}
    for counts in counters:
        for key, count in counts.items():
            most[key] = max(count, most.get(key, KeyCount()))
    return [
        KeyRate(
            key,
            round(count.messages / duration_s, 3),
            round(count.size_bytes / BYTES_PER_KB / duration_s, 3),
        )
        for key, count in sorted(most.items())
    ]


def link_report(survey: LinkSurvey) -> Report:
    """Return participants, rates and problems; the status is 1 when no server responds."""
    data = {
        'site': survey.site,
        'duration_s': round(survey.duration_s, 3),
        'reached': list(survey.reached),
        'problems': survey.problem_texts,
        'failure': survey.failure,
        'participants': [_participant(each, survey) for each in survey.participants],
        'keys': [asdict(each) for each in survey.rates],
    }
    return Report(data, _parts(survey, data), error=survey.failure)


def _parts(survey: LinkSurvey, data: dict[str, Any]) -> list[Part]:
    if not survey.participants:
        return []
    participants = [_row(each) for each in data['participants']]
    rates = [
        (each.key, number(each.messages_per_s), number(each.kb_per_s)) for each in survey.rates
    ]
    problems = ['', *survey.problem_texts] if survey.problem_texts else []
    return [
        f'site {survey.site}, watched for {survey.duration_s:.1f} s at '
        + (', '.join(survey.reached) or NONE),
        '',
        Table(HEADS, participants),
        '',
        Table(('key', 'messages/s', 'kB/s'), rates),
        *problems,
    ]


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    trip = each.get('round_trip_ms') or {}
    return (
        each['name'],
        each['client_of'] or NONE,
        each['role'],
        'yes' if each['has_token'] else 'no',
        number(trip.get('p50')),
        number(trip.get('p99')),
        each.get('policy') or NONE,
    )


def _participant(each: Participant, survey: LinkSurvey) -> dict[str, Any]:
    has_token = each in survey.alive
    if not each.is_server:
        return {
            'name': each.client,
            'client_of': each.server,
            'role': each.role,
            'has_token': has_token,
        }
    answers = survey.answers.get(each.server, ServerAnswers())
    return {
        'name': each.server,
        'client_of': '',
        'role': 'router' if answers.policy_type == ROUTER else 'server',
        'has_token': has_token,
        'policy': answers.policy,
        'text': answers.text,
        'error': answers.error,
        'round_trip_ms': {
            'n': len(answers.round_trips_ms),
            'p50': answers.percentile_ms(50),
            'p99': answers.percentile_ms(99),
        },
    }


def number(value: float | None) -> str:
    return NONE if value is None else f'{value:.1f}'
