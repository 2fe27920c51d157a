# SPDX-License-Identifier: Apache-2.0
"""
Invariants of an edge, checked from what crosses its boundary: commands, requests, chunks, and what
an operator does. It shares no code with the product.

Each row of a chunk carries a number of its own in the last action, the mark, which no limit ever
changes. So a command tells which row it plays, and with it which request, policy and episode.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from benchmarks.hunting.driver import Violation

S = 1_000_000_000
TINY = 1e-6
MARK = -1
# of a robot that is known: so many samples, no further apart than this share of the range
SAMPLES, SAME_SHARE = 3, 0.02
# in which a robot that is not seen any more comes to rest
SETTLING_STEPS = 2
Key = tuple[int, int, int]
Command = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EdgeBounds:
    """What the robot file and the parameters promise."""

    low: Command
    high: Command
    max_step: Command
    period_ns: int
    max_age_ns: int
    request_timeout_ns: int
    # the longest that coming to rest may take
    rest_ns: int
    # a gap between two control steps, or without a sample, after which nothing is known of it
    silence_ns: int
    # how far a command may be from where it was measured
    max_lead: Command
    run_on_start: bool = True
    interpolated: bool = False


@dataclass(slots=True)
class ChunkRow:
    """One row that a server made: of which request, which policy, and what it says."""

    key: Key
    policy: str
    values: Command


@dataclass(slots=True)
class SentRequest:
    """One request."""

    captured_ns: int
    sent_ns: int
    episode: int
    is_over: bool = False


@dataclass
class EdgeInvariants:
    """Each method is one thing that crossed the boundary; it raises Violation."""

    bounds: EdgeBounds
    rows: dict[int, ChunkRow] = field(default_factory=dict)
    requests: dict[Key, SentRequest] = field(default_factory=dict)
    # actions of policies that were commanded
    witnessed: int = 0
    # steps in which a person commanded
    by_person: int = 0
    # these outlive the process
    _is_taken_over: bool = False
    _paused: bool = False
    _stopped_ns: int | None = None
    _latched_ns: int | None = None

    def __post_init__(self) -> None:
        self._planned_since_ns = self._person_ns = 0
        self.restarted(0)

    def restarted(self, now_ns: int) -> None:
        """The process began, again: of the one before only what was decided counts."""
        self._running = self.bounds.run_on_start
        self._quiet_since_ns = now_ns if self._paused or not self._running else None
        self._sensed_ns, self._sensed = now_ns, None
        self._stepped_ns: int | None = None
        # samples since nothing was known, and since when; None while it is known
        self._silent_ns: int | None = None
        self._agreeing: list[Command] = []
        self._episode, self._played_marks = 0, set()
        self._last: Command | None = None
        self._last_ns, self._speeds = 0, (0.0,)
        self._flying: Key | None = None
        self.requests.clear()

    # an operator

    def operator(self, word: str, now_ns: int) -> None:
        """Note a word that was accepted."""
        if word in ('begin', 'reset'):
            self._episode += 1
            self._running = True
        if word == 'reset':
            self._stopped_ns = None
        if word == 'reset_cage':
            self._latched_ns = None
        if word == 'end':
            self._running = False
        self._paused = {'pause': True, 'resume': False}.get(word, self._paused)
        is_quiet = self._paused or not self._running
        if is_quiet and self._quiet_since_ns is None:
            self._quiet_since_ns = now_ns
        elif not is_quiet:
            self._quiet_since_ns = None

    def stop_called(self, now_ns: int) -> None:
        """The stop service was called: it comes to rest, and is silent until a reset."""
        if self._stopped_ns is None:
            self._stopped_ns = now_ns

    def latched(self, now_ns: int) -> None:
        """The state says that the cage is latched: it comes to rest, until a reset of the cage."""
        if self._latched_ns is None:
            self._latched_ns = now_ns

    def sensed(self, where: Command, taken_ns: int, now_ns: int) -> None:
        """A measurement arrived that was taken then, perhaps while the process stood still."""
        if now_ns - self._sensed_ns > self.bounds.silence_ns:
            self._begin_silence(now_ns)
        self._sensed, self._sensed_ns = where, now_ns
        if self._silent_ns is not None and taken_ns >= self._silent_ns:
            self._agreeing = [*self._agreeing, where] if self._agrees(where) else [where]

    def _agrees(self, where: Command) -> bool:
        bounds, newest = self.bounds, self._agreeing[-1:]
        apart = [
            max(step, SAME_SHARE * (high - low)) + TINY
            for step, low, high in zip(bounds.max_step, bounds.low, bounds.high, strict=True)
        ]
        return all(
            abs(a - b) <= c
            for other in newest
            for a, b, c in zip(where, other, apart, strict=True)
        )

    def _begin_silence(self, now_ns: int) -> None:
        if self._silent_ns is None or now_ns - self._silent_ns > self.bounds.silence_ns:
            self._silent_ns, self._agreeing, self._last = now_ns, [], None

    def _stepped(self, command: Command | None, now_ns: int) -> None:
        """Each control step: after a silence nothing is commanded before samples agree."""
        before_ns, self._stepped_ns = self._stepped_ns, now_ns
        if before_ns is not None and now_ns - before_ns > self.bounds.silence_ns:
            self._begin_silence(now_ns)
        if len(self._agreeing) >= SAMPLES:
            self._silent_ns, self._agreeing = None, []
        if command is None:
            return
        if self._silent_ns is not None:
            count = len(self._agreeing)
            raise Violation('silence', f'{command} is commanded {count} samples after a silence')
        unseen_ns = now_ns - self._sensed_ns
        if unseen_ns > self.bounds.silence_ns + SETTLING_STEPS * self.bounds.period_ns:
            raise Violation('silence', f'{command}, {unseen_ns / S:.2f} s after it was seen')
        self._check_lead(command)

    def _check_lead(self, command: Command) -> None:
        """No command goes further ahead of the measured position than it may be."""
        before = self._sensed if self._last is None else self._last
        for i, (to, at, was) in enumerate(zip(command, self._sensed, before, strict=True)):
            ahead = abs(to - at)
            if ahead > self.bounds.max_lead[i] + TINY and ahead > abs(was - at) + TINY:
                raise Violation('lead', f'action {i} is {ahead:.3f} ahead of {at:.3f}')

    # a person

    def taken_over(self) -> None:
        """A person has taken over."""
        self._is_taken_over = True

    def handed_back(self, now_ns: int) -> None:
        """The person has handed back: only what is asked for from now on is played."""
        self._is_taken_over, self._planned_since_ns = False, now_ns

    def person_commanded(
        self, command: Command | None, now_ns: int, where: Command, *, may_command: bool
    ) -> None:
        """One control step of a person; `may_command`: deadman and commands are there."""
        if not self._is_taken_over:
            raise Violation('person', 'a person commands who has not taken over')
        if not may_command:
            raise Violation('person', 'it follows without a deadman, or an old command')
        if self._stopped_ns is not None:
            raise Violation('stop', 'after a stop by service a person commands')
        if self._latched_ns is not None:
            raise Violation('latch', 'the cage is latched, and a person commands')
        if self._paused:
            raise Violation('authority', 'paused, and a person commands')
        self._stepped(command, now_ns)
        if command is None:
            self._last = None
            return
        self._check_numbers(command)
        speeds = self._speeds_to(command, where)
        self._check_seen(now_ns, speeds)
        self.by_person += 1
        self._last, self._last_ns, self._speeds = command, now_ns, speeds
        self._person_ns = now_ns

    # requests and chunks

    def asked(
        self, key: Key, now_ns: int, captured_ns: int, marks: list[float], policy: str
    ) -> None:
        """A request left; `marks` are those of its prefix, `policy` what it says of the prefix."""
        flying = self.requests.get(self._flying) if self._flying else None
        if flying and not flying.is_over and self._flying[:2] == key[:2]:
            waited_ns = now_ns - flying.sent_ns
            if waited_ns < self.bounds.request_timeout_ns:
                raise Violation(
                    'one in flight',
                    f'{key} was sent {waited_ns / S:.2f} s after {self._flying}, which was not '
                    'answered',
                )
        if key in self.requests:
            raise Violation('one in flight', f'{key} was sent twice')
        self._flying = key
        self.requests[key] = SentRequest(captured_ns, now_ns, self._episode)
        policies = {self._row(mark, 'a prefix').policy for mark in marks}
        if policies - {policy}:
            raise Violation('prefix', f'a prefix of {policy!r} has rows of {sorted(policies)}')

    def made(self, mark: int, row: ChunkRow) -> None:
        """A server made a row."""
        self.rows[mark] = row

    def arrived(self, key: Key) -> None:
        """Something arrived that says it answers this request."""
        if key in self.requests:
            self.requests[key].is_over = True

    # commands

    def commanded(
        self, command: Command | None, now_ns: int, where: Command, *, plays: bool, free: bool
    ) -> None:
        """
        One control step. `where` is where the robot really is; `plays` says that this is an action
        of a policy, `free` that the cage let it or the nearest to it through.
        """
        self._stepped(command, now_ns)
        if command is None:
            self._last = None
            return
        if plays and self._is_taken_over:
            raise Violation('person', 'a policy plays while a person has taken over')
        self._check_numbers(command)
        speeds = self._speeds_to(command, where)
        if self._stopped_ns is not None:
            what = 'stop', 'after a stop by service', self._stopped_ns
            self._check_quiet(*what, command, now_ns, speeds, plays=plays)
            if self._last is None:
                raise Violation('stop', f'{command} begins after a stop by service')
        if self._latched_ns is not None:
            what = 'latch', 'the cage is latched', self._latched_ns
            self._check_quiet(*what, command, now_ns, speeds, plays=plays)
        if self._quiet_since_ns is not None:
            why = 'paused' if self._paused else 'no episode runs'
            # what a person moved comes to rest after them
            what = 'authority', why, max(self._quiet_since_ns, self._person_ns)
            self._check_quiet(*what, command, now_ns, speeds, plays=plays)
        if plays and free:
            self._check_row(command, now_ns)
            self._check_seen(now_ns, speeds)
        self._last, self._last_ns, self._speeds = command, now_ns, speeds

    def _check_numbers(self, command: Command) -> None:
        low, high = self.bounds.low, self.bounds.high
        for i, value in enumerate(command):
            if not isfinite(value):
                raise Violation('finite', f'{command} is commanded')
            if not low[i] - TINY <= value <= high[i] + TINY:
                raise Violation('position', f'{value} is not in [{low[i]}, {high[i]}], action {i}')

    def _check_seen(self, now_ns: int, speeds: Command) -> None:
        blind_ns = now_ns - self._sensed_ns
        if blind_ns > self.bounds.silence_ns and max(speeds[:MARK]) > TINY:
            raise Violation('blind', f'it is moved, {blind_ns / S:.2f} s after it was seen')

    def _speeds_to(self, command: Command, where: Command) -> Command:
        """Return how far each action goes in this step, within its limit."""
        begin = where if self._last is None else self._last
        speeds = tuple(abs(to - at) for to, at in zip(command, begin, strict=True))
        for i, speed in enumerate(speeds[:MARK]):
            if speed > self.bounds.max_step[i] + TINY:
                what = 'from where it is' if self._last is None else 'from the command before'
                raise Violation(
                    'start' if self._last is None else 'step',
                    f'action {i} goes {speed:.4f} {what}, {self.bounds.max_step[i]} is allowed',
                )
        return speeds

    def _check_quiet(
        self,
        rule: str,
        why: str,
        since_ns: int,
        command: Command,
        now_ns: int,
        speeds: Command,
        *,
        plays: bool,
    ) -> None:
        """What moves comes to rest, and nothing begins."""
        if plays:
            raise Violation(rule, f'{why}, and a policy commands')
        if self._last is None:
            if max(speeds[:MARK]) > TINY:
                raise Violation(rule, f'{why}, and a motion of {max(speeds[:MARK]):.4f} begins')
            return
        for i, speed in enumerate(speeds[:MARK]):
            before = self._speeds[i] if i < len(self._speeds) else 0.0
            if speed > before + TINY:
                raise Violation(
                    rule, f'{why}, and action {i} goes from {before:.4f} to {speed:.4f} a step'
                )
        if now_ns - since_ns > self.bounds.rest_ns and max(speeds[:MARK]) > TINY:
            raise Violation(rule, f'{why} for long, and it moves by {max(speeds[:MARK])}')

    def _row(self, mark: float, what: str) -> ChunkRow:
        row = self.rows.get(round(mark)) if abs(mark - round(mark)) < TINY else None
        if row is None:
            raise Violation('invented', f'{what} has the mark {mark}, which no server made')
        return row

    def _check_row(self, command: Command, now_ns: int) -> None:
        self.witnessed += 1
        if self.bounds.interpolated:
            # between two rows no mark is whole
            return
        row = self._row(command[MARK], 'what is played')
        request = self.requests.get(row.key)
        if request is None:
            raise Violation('invented', f'a row of {row.key} is played, which was never asked')
        age_ns = now_ns - request.captured_ns
        if age_ns > self.bounds.max_age_ns:
            raise Violation('stale', f'an action is played {age_ns / S:.3f} s after its inputs')
        if request.sent_ns < self._planned_since_ns:
            raise Violation('handed back', 'a row that was asked for before is played')
        if request.episode != self._episode:
            raise Violation('episode', 'a row of an episode that has ended is played')
        mark = round(command[MARK])
        if mark in self._played_marks:
            raise Violation('invented', f'row {mark} is played twice')
        self._played_marks.add(mark)

    def forget(self, before_ns: int) -> None:
        """Let go of what cannot count any more, so that long hunts stay small."""
        old = {key for key, asked in self.requests.items() if asked.sent_ns < before_ns}
        self.requests = {key: asked for key, asked in self.requests.items() if key not in old}
        self.rows = {mark: row for mark, row in self.rows.items() if row.key not in old}
        self._played_marks &= self.rows.keys()
