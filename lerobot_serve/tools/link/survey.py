# SPDX-License-Identifier: Apache-2.0
"""
What a survey of a link has found: who takes part, by the keys, what each key has carried, and how
servers respond. Pure but for the lock of a counter; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
import re
import threading

from lerobot_serve.contract.names import KEY_ROOT, SEGMENT
from lerobot_serve.telemetry.percentiles import percentile
from lerobot_serve.zenoh.keys import Role


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


ALIVE = 'alive'
CLIENT_KEY = re.compile(
    f'{KEY_ROOT}/(?P<site>{SEGMENT})/(?P<server>{SEGMENT})/'
    f'(?P<role>{"|".join(Role)})/(?P<client>{SEGMENT})/.+'
)
INSTANCE_KEY = re.compile(f'{KEY_ROOT}/{SEGMENT}/{SEGMENT}/instance/{SEGMENT}')
SERVER_KEY = re.compile(f'{KEY_ROOT}/(?P<site>{SEGMENT})/(?P<server>{SEGMENT})/.+')


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


BYTES_PER_KB = 1000.0


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
        KeyRate(key, count.messages / duration_s, count.size_bytes / BYTES_PER_KB / duration_s)
        for key, count in sorted(most.items())
    ]
