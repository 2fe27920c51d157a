# SPDX-License-Identifier: Apache-2.0
"""
Report outcomes of this robot's episodes to its router, where a link can: over Zenoh.

The executor thread adds and polls; a thread of the link delivers replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
import threading
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from lerobot_serve.contract.records import EpisodeOutcome, ReportOutcomeRequest

# a try ends before the next one: CALL_LATER_S of the link is shorter
LIMIT, TRIES, RETRY_NS = 64, 10, 3_000_000_000


@runtime_checkable
class OutcomeClient(Protocol):
    """A client of a server that can be asked to record an outcome."""

    def is_available(self) -> bool: ...

    def report_outcome(
        self, request: ReportOutcomeRequest, on_reply: Callable[[bool, str], None], /
    ) -> None:
        """Report without waiting; `on_reply` gets whether it is accepted, and a text."""


@dataclass(slots=True)
class Report:
    """An outcome without a reply, and when it was sent last."""

    outcome: EpisodeOutcome
    tries: int = 0
    sent_ns: int | None = None


class OutcomeReports:
    """
    At most LIMIT outcomes wait for their router, the newest of each episode. A server that does
    not reply TRIES times is not a router: policy servers keep no outcomes.
    """

    def __init__(
        self,
        client_id: str,
        client: Callable[[], object],
        clients: Callable[[], Iterable[object]],
        clock: Callable[[], int],
        *,
        count_dropped: Callable[[str], None],
        log_warning: Callable[[str], object],
    ) -> None:
        """
        `client` returns the client of the present server, None without one; `clients` those of all
        servers.
        """
        self._client_id, self._client, self._clock = client_id, client, clock
        self._clients = clients
        self._count_dropped, self._log_warning = count_dropped, log_warning
        self._waiting: dict[str, Report] = {}
        self._lock = threading.Lock()

    def add(self, outcome: EpisodeOutcome) -> None:
        """Report an outcome, unless it is of another robot."""
        if outcome.client_id not in ('', self._client_id):
            return
        outcome = replace(outcome, client_id=self._client_id)
        with self._lock:
            self._waiting.pop(outcome.episode_id, None)
            self._waiting[outcome.episode_id] = Report(outcome)
            is_full = len(self._waiting) > LIMIT
            if is_full:
                del self._waiting[next(iter(self._waiting))]
        if is_full:
            self._count_dropped('outcome_unsent')
        self.poll()

    def poll(self) -> None:
        """
        Send what is due. Over ROS 2 a router hears the topic of outcomes itself; outcomes wait
        while such a server stands in for one over Zenoh.
        """
        client = self._client()
        if not any(isinstance(each, OutcomeClient) for each in self._clients()):
            with self._lock:
                self._waiting.clear()
            return
        if not (isinstance(client, OutcomeClient) and client.is_available()):
            return
        for report in self._due(self._clock()):
            client.report_outcome(ReportOutcomeRequest(report.outcome), self._on_reply_to(report))

    def _due(self, now_ns: int) -> list[Report]:
        with self._lock:
            due = [
                each
                for each in self._waiting.values()
                if each.sent_ns is None or now_ns - each.sent_ns >= RETRY_NS
            ]
            for report in due:
                report.sent_ns, report.tries = now_ns, report.tries + 1
                if report.tries > TRIES:
                    del self._waiting[report.outcome.episode_id]
        for _ in (each for each in due if each.tries > TRIES):
            self._count_dropped('outcome_unsent')
        return [each for each in due if each.tries <= TRIES]

    def _on_reply_to(self, report: Report) -> Callable[[bool, str], None]:
        def on_reply(is_accepted: bool, text: str) -> None:
            episode_id = report.outcome.episode_id
            with self._lock:
                is_first = self._waiting.get(episode_id) is report
                if is_first:
                    del self._waiting[episode_id]
            if is_first and not is_accepted:
                self._count_dropped('outcome_refused')
                self._log_warning(f'the router refuses the outcome of {episode_id}: {text}')

        return on_reply
