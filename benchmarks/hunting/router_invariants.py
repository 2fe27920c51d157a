# SPDX-License-Identifier: Apache-2.0
"""
Invariants of a router, checked from what crosses its boundary: requests and replies, placements as
they are published, what operators said, verdicts, and how servers are. It shares no code with the
product.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.hunting.driver import Violation

S = 1_000_000_000
Key = tuple[str, int, int]


@dataclass(slots=True)
class WaitingRequest:
    """A request of a robot."""

    sent_ns: int
    episode: str


@dataclass(slots=True)
class LastReply:
    """What an episode's robot heard last: from which slot and policy."""

    slot: str
    policy: str


class CanaryCounts(NamedTuple):
    """What a canary says of its trial: candidate and champion, successes and failures of each."""

    policies: tuple[str, str]
    is_running: bool
    step: int
    candidate: tuple[int, int]
    champion: tuple[int, int]


@dataclass
class RouterInvariants:
    """Each method is one thing that crossed the boundary; it raises Violation."""

    # by then every request has one end
    end_ns: int
    # a slot whose servers and sessions were well for so long has no excuse
    calm_ns: int
    waiting: dict[Key, WaitingRequest] = field(default_factory=dict)
    ended: Counter[Key] = field(default_factory=Counter)
    # a policy, or a slot whose policy was not known -> the episodes that may end there
    barred: dict[str, set[str]] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    split_percent: int = 50
    well_since_ns: dict[str, int | None] = field(default_factory=dict)
    told: dict[str, LastReply] = field(default_factory=dict)
    # episode -> the slot and the policy that it was given
    placed: dict[str, str] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    unflagged: set[str] = field(default_factory=set)
    # chunks with actions that robots got
    witnessed: int = 0

    # what operators and verdicts said

    def verdict(self, policy: str, slot: str) -> None:
        """
        The policy of a slot was rolled back, or whatever the slot serves where that is not known.
        Episodes that run with it may end there.
        """
        name = policy or slot
        if name not in self.barred:
            driven = {e for e, told in self.told.items() if name in (told.policy, told.slot)}
            # placed there, and not answered yet
            placed = {e for e, where in self.placed.items() if name in (where, self.given.get(e))}
            self.barred[name] = driven | placed

    def lifted(self, policy: str, slot: str) -> None:
        """A person has lifted the verdicts on a slot and its policy."""
        for name in (policy, slot):
            self.barred.pop(name, None)

    def drain(self, slot: str, *, is_drained: bool) -> None:
        (self.drained.add if is_drained else self.drained.discard)(slot)

    def split(self, percent: int) -> None:
        """The split was changed, by an operator or by the canary."""
        self.split_percent = percent

    def started(self, split_percent: int) -> None:
        """The router started and says what its split is."""
        if split_percent != self.split_percent:
            raise Violation(
                'intent',
                f'split_percent was set to {self.split_percent}, and is {split_percent} after a '
                'restart',
            )
        # what was under way went with the process, and which policy each robot had
        self.waiting.clear()
        self.unflagged = set(self.told)

    def outcome_survived(self, before: CanaryCounts, after: CanaryCounts) -> None:
        """An outcome was accepted, the router killed, and started again."""
        # servers of one slot with several policies: which one it has may change with the start
        is_same = before.is_running and after.policies == before.policies
        # it waits for servers that do not respond
        if is_same and after._replace(is_running=True) != before:
            raise Violation('outcome', f'{before} is {after} after a restart')

    def slot_is(self, slot: str, now_ns: int, *, well: bool, open: bool) -> None:
        """How all servers of a slot are, and whether every robot has its session there."""
        for what, holds in ((f'servers {slot}', well), (slot, well and open)):
            if not holds:
                self.well_since_ns[what] = None
            elif self.well_since_ns.get(what) is None:
                self.well_since_ns[what] = now_ns

    def _is_calm(self, what: str, now_ns: int) -> bool:
        since_ns = self.well_since_ns.get(what)
        return since_ns is not None and now_ns - since_ns >= self.calm_ns

    # requests, placements and replies

    def asked(self, key: Key, episode: str, now_ns: int) -> None:
        self.waiting[key] = WaitingRequest(now_ns, episode)

    def decided(self, episode: str, slot: str, policy: str, now_ns: int, *, is_new: bool) -> None:
        """A placement was published; `is_new` where the episode was placed nowhere before."""
        self._check_verdicts(episode, slot, policy)
        before, self.placed[episode] = self.placed.get(episode), slot
        left, self.given[episode] = self.given.get(episode), policy
        if before is None and is_new:
            self._check_new(episode, slot, now_ns)
        elif before not in (None, slot) and not {left, before} & set(self.barred):
            self._check_move(episode, before, slot, now_ns)

    def _check_verdicts(self, episode: str, slot: str, policy: str) -> None:
        for name in (policy, slot):
            ending = self.barred.get(name)
            if ending is not None and episode not in ending:
                raise Violation(
                    'barred', f'{episode} is given to {policy} in slot {slot}: {name} is barred'
                )

    def _check_new(self, episode: str, slot: str, now_ns: int) -> None:
        other = 'b' if slot == 'a' else 'a'
        if not self._is_calm(other, now_ns) or other in self.drained:
            return
        if slot in self.drained:
            raise Violation(
                'drained', f'{episode} begins in slot {slot}, which an operator has drained'
            )
        if self.split_percent == (0 if slot == 'a' else 100):
            raise Violation(
                'split',
                f'{episode} begins in slot {slot}, though split_percent is {self.split_percent}',
            )

    def _check_move(self, episode: str, before: str, slot: str, now_ns: int) -> None:
        # also across a restart
        if self._is_calm(f'servers {before}', now_ns) and before not in self.drained:
            raise Violation(
                'sticky', f'{episode} leaves slot {before}, which is well, for slot {slot}'
            )

    def replied(self, key: Key, episode: str, slot: str, policy: str, *, flagged: bool) -> None:
        """A robot got a chunk with actions."""
        self._end(key)
        self.witnessed += 1
        self._check_verdicts(episode, slot, policy)
        before, self.told[episode] = self.told.get(episode), LastReply(slot, policy)
        is_known = episode not in self.unflagged
        self.unflagged.discard(episode)
        if before and before.policy != policy and is_known and not flagged:
            raise Violation(
                'flag', f'{episode} goes from {before.policy} to {policy}, and is not told'
            )

    def failed(self, key: Key) -> None:
        """A robot was told that there are no actions."""
        self._end(key)

    def dropped(self, key: Key) -> None:
        """A request was counted as ended without an answer."""
        if key in self.waiting:
            self._end(key)

    def _end(self, key: Key) -> None:
        self.ended[key] += 1
        if self.ended[key] > 1:
            raise Violation('answered twice', f'{key}')
        self.waiting.pop(key, None)

    def closed(self, client: str) -> None:
        """A session is over: nothing is waited for."""
        for key in [key for key in self.waiting if key[0] == client]:
            del self.waiting[key]

    def look(self, now_ns: int) -> None:
        """Look for requests that have no end."""
        for key, asked in self.waiting.items():
            if now_ns - asked.sent_ns > self.end_ns:
                raise Violation(
                    'lost', f'{key} has no answer and was not counted for {self.end_ns / S:g} s'
                )

    def forget(self, keep: int) -> None:
        """Let go of what is long over."""
        for book in (self.told, self.placed, self.given, self.ended):
            for name in list(book)[:-keep]:
                del book[name]
