# SPDX-License-Identifier: Apache-2.0
"""
Outcomes of episodes: their words in traces, and a registry of recent ones, in which the first
report counts. Any thread.

OutcomeReport outcomes of this robot's episodes to its router, where a link can: over Zenoh.

The executor thread adds and polls; a thread of the link delivers replies.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
import threading
from typing import NamedTuple

from msgspec.structs import replace

from lerobot_serve.contract.records import EpisodeOutcome, ReportOutcomeRequest, RunEpisodeResult
from lerobot_serve.links.server_client import ServerClient

EPISODES_KEPT = 64


RunOutcome = RunEpisodeResult.Outcome


class ReportedOutcome(NamedTuple):
    """The word of an outcome in traces, and the outcome of the run that it ends."""

    word: str
    run: RunOutcome


# EpisodeOutcome.outcome -> its meaning; an aborted one is a failure of the run
REPORTED_OUTCOMES = {
    1: ReportedOutcome('success', RunOutcome.SUCCESS),
    2: ReportedOutcome('failure', RunOutcome.FAILURE),
    3: ReportedOutcome('aborted', RunOutcome.FAILURE),
}


def run_outcome_word(outcome: RunOutcome) -> str:
    """Return the word of a run's outcome; all but success and failure are aborted."""
    has_word = outcome in (RunOutcome.SUCCESS, RunOutcome.FAILURE)
    return outcome.name.lower() if has_word else 'aborted'


@dataclass(slots=True)
class EpisodeRecord:
    """Slot and policy of the last reply, and the outcome; empty while unknown."""

    slot: str = ''
    policy: str = ''
    outcome: str = ''


class OutcomeRegistry:
    """Keeps the latest episodes."""

    def __init__(self) -> None:
        self._episodes: OrderedDict[str, EpisodeRecord] = OrderedDict()
        self._lock = threading.Lock()

    def record_request(self, episode_id: str) -> None:
        """Record that an episode of this robot sent a request."""
        with self._lock:
            self._episode(episode_id)

    def record_reply(self, episode_id: str, slot: str, policy: str) -> None:
        """Record the slot and policy of a reply."""
        with self._lock:
            episode = self._episode(episode_id)
            episode.slot, episode.policy = slot, policy

    def record_outcome(self, episode_id: str, outcome: int) -> EpisodeRecord | None:
        """Record a reported outcome; None for another robot's episode, or if already known."""
        with self._lock:
            if episode_id not in self._episodes:
                return None
            known = REPORTED_OUTCOMES.get(outcome)
            return self._end(self._episodes[episode_id], known.word if known else '')

    def record_run_end(self, episode_id: str, outcome: RunOutcome) -> EpisodeRecord | None:
        """Record the end of a run; None if the outcome was already known."""
        with self._lock:
            return self._end(self._episode(episode_id), run_outcome_word(outcome))

    def _episode(self, episode_id: str) -> EpisodeRecord:
        episode = self._episodes.setdefault(episode_id, EpisodeRecord())
        if len(self._episodes) > EPISODES_KEPT:
            self._episodes.popitem(last=False)
        return episode

    @staticmethod
    def _end(episode: EpisodeRecord, outcome: str) -> EpisodeRecord | None:
        if episode.outcome or not outcome:
            return None
        episode.outcome = outcome
        return episode


# a try ends before the next one: CALL_LATER_S of the link is shorter
LIMIT, TRIES, RETRY_NS = 64, 10, 3_000_000_000


@dataclass(slots=True)
class OutcomeReport:
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
        clients: Mapping[str, ServerClient],
        server: Callable[[], str],
        clock: Callable[[], int],
        *,
        count_dropped: Callable[[str], None],
        log_warning: Callable[[str], object],
    ) -> None:
        """`clients` are those of the servers over Zenoh; `server` returns the present one."""
        self._client_id, self._clients, self._clock = client_id, clients, clock
        self._server = server
        self._count_dropped, self._log_warning = count_dropped, log_warning
        self._waiting: dict[str, OutcomeReport] = {}
        self._lock = threading.Lock()

    def add(self, outcome: EpisodeOutcome) -> None:
        """Report an outcome, unless it is of another robot."""
        if outcome.client_id not in ('', self._client_id):
            return
        outcome = replace(outcome, client_id=self._client_id)
        with self._lock:
            self._waiting.pop(outcome.episode_id, None)
            self._waiting[outcome.episode_id] = OutcomeReport(outcome)
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
        if not self._clients:
            with self._lock:
                self._waiting.clear()
            return
        client = self._clients.get(self._server())
        if client is None or not client.is_available():
            return
        for report in self._due(self._clock()):
            client.report_outcome(ReportOutcomeRequest(report.outcome), self._on_reply_to(report))

    def _due(self, now_ns: int) -> list[OutcomeReport]:
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

    def _on_reply_to(self, report: OutcomeReport) -> Callable[[bool, str], None]:
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
