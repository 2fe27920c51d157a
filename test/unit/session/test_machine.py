# SPDX-License-Identifier: Apache-2.0
"""The session machine: each event in each state, and any script of an owner and its network."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.replacing import replace

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.records import OpenSessionRequest, OpenSessionResponse
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import EPOCHS, ServerUnreachable, SessionRefused
from lerobot_serve.session.machine import (
    Event,
    MAX_HOLD_S,
    ReplyDropped,
    SessionMachine,
    State,
)
from lerobot_serve.session.turns import Turns

TERMS = OpenSessionRequest(client_id='robot')
AGREED = OpenSessionResponse(schema_version=1)
REFUSED = SessionRefused(Refusal.CAPACITY, 'full')
OUTCOMES = AGREED, AGREED, REFUSED, ServerUnreachable('no response')
TABLE = """
           CLOSED   OPENING  OPEN     ENDED
REQUESTED  OPENING  OPENING  OPENING  -
OPENED     -        OPEN     -        ENDED
FAILED     -        CLOSED   -        ENDED
LOST       CLOSED   OPENING  CLOSED   ENDED
SENT       -        -        OPEN     -
END        ENDED    ENDED    ENDED    ENDED
"""


def request(machine: SessionMachine) -> OpenSessionRequest:
    return machine.request(TERMS, '/replies/{}'.format)


CALLS = {
    Event.REQUESTED: request,
    Event.OPENED: lambda machine: machine.opened(machine.requested_epoch, 1),
    Event.FAILED: lambda machine: machine.failed(
        machine.requested_epoch, ServerUnreachable('away')
    ),
    Event.LOST: lambda machine: machine.lost('gone'),
    Event.SENT: lambda machine: machine.sent(object()),
    Event.END: SessionMachine.end,
}
# what leads from OPENING to each state
WAYS = {State.CLOSED: Event.FAILED, State.OPEN: Event.OPENED, State.ENDED: Event.END}


def test_each_event_in_each_state_leads_where_the_table_says_or_changes_nothing():
    header, *rows = (line.split() for line in TABLE.strip().splitlines())
    assert [Event[row[0]] for row in rows] == list(Event) and len(header) == len(State)
    for event, *after in rows:
        for before, expected in zip(header, after, strict=True):
            machine: SessionMachine = SessionMachine('robot', EPOCHS - 1)
            assert request(machine).session_epoch == 0
            if State[before] in WAYS:
                CALLS[WAYS[State[before]]](machine)
            content = dict(vars(machine))
            assert machine.state is State[before]
            if expected == '-':
                with pytest.raises(KeyError):
                    CALLS[Event[event]](machine)
                assert vars(machine) == content
            else:
                CALLS[Event[event]](machine)
                assert machine.state is State[expected]


class Owner:
    """Numbers choose what a step is about: the network delays, repeats and invents messages."""

    def __init__(self) -> None:
        self.machine = SessionMachine[int]('robot')
        self.epochs: list[int] = []
        # the outcome of each comes once, in any order
        self.undecided: list[OpenSessionRequest] = []
        self.sent: list[Header] = []
        self.awaited: Header | None = None
        self.is_open = self.is_late = False
        # without a reply, since the last one
        self.unanswered = 0

    def request(self, _: int) -> None:
        if self.machine.state is not State.ENDED:
            self.undecided.append(request(self.machine))
            self.epochs.append(self.undecided[-1].session_epoch)
            self.is_open = False

    def decide(self, number: int) -> None:
        if not self.undecided:
            return
        asked, outcome = self.undecided.pop(number % len(self.undecided)), OUTCOMES[number % 4]
        is_last = asked.session_epoch == self.epochs[-1]
        if outcome is not AGREED:
            self.machine.failed(asked.session_epoch, outcome)
            assert not is_last or self.machine.why_lost == str(outcome)
            assert not is_last or (self.machine.requested is None) == (outcome is REFUSED)
        elif self.machine.opened(asked.session_epoch, outcome.schema_version):
            assert is_last and self.machine.session_epoch == asked.session_epoch
            assert (self.machine.episode, self.machine.seq) == (0, 0)
            self.is_open, self.awaited, self.unanswered = True, None, 0
            assert self.machine.held_s(0) == 0
        else:
            assert not is_last or self.machine.state is State.ENDED

    def lose(self, _: int) -> None:
        self.machine.lost('gone')
        self.is_open = False

    def begin_episode(self, _: int) -> None:
        before = self.machine.episode_id
        self.machine.begin_episode()
        assert self.machine.episode_id != before
        self.awaited = None

    def send(self, _: int) -> None:
        if self.is_open and self.awaited:
            content = dict(vars(self.machine))
            with pytest.raises(RuntimeError, match='still in flight'):
                self.machine.sent(0)
            assert vars(self.machine) == content
        elif self.is_open:
            self.awaited = self.machine.next_header(0)
            self.sent.append(self.awaited)
            self.is_late = False
            self.machine.sent(len(self.sent))

    def give_up(self, _: int) -> None:
        assert self.machine.release() == (len(self.sent) if self.awaited else None)
        self.machine.unanswered_s += bool(self.awaited)
        self.unanswered += bool(self.awaited)
        self.awaited = None

    def be_late(self, _: int) -> None:
        self.machine.overdue()
        self.is_late = True

    def hold(self, number: int) -> None:
        self.machine.hold(10**9, number)
        assert self.machine.held_s(10**9) == min(number, MAX_HOLD_S)
        assert self.machine.held_s(0) == min(number, MAX_HOLD_S) + 1

    def reply(self, number: int) -> None:
        if not self.sent:
            return
        back, change = number % 3, number // 3
        header = self.sent[-1 - back % len(self.sent)]
        if change:
            part = ('seq', 'episode', 'session_epoch')[change - 1]
            header = replace(header, **{part: getattr(header, part) + 1})
        if header.session_epoch == self.machine.session_epoch:
            self.unanswered = 0
        content = {**vars(self.machine), 'unanswered_s': self.unanswered}
        if header == self.awaited:
            assert self.machine.take(header.for_reply(0)) == len(self.sent)
            self.awaited = None
        else:
            with pytest.raises(ReplyDropped, match=r'stale_epoch|stale_episode|late_chunk'):
                self.machine.take(header.for_reply(0))
            assert vars(self.machine) == content

    def end(self, _: int) -> None:
        self.machine.end()
        self.is_open, self.awaited = False, None

    def check(self) -> None:
        assert len(set(self.epochs)) == len(self.epochs)
        assert self.machine.is_open == self.is_open
        assert (self.machine.in_flight is None) == (self.awaited is None)
        is_in_time = self.awaited is not None and not self.is_late
        assert self.machine.awaits_reply == (self.is_open and is_in_time)
        assert self.machine.unanswered_s == self.unanswered


OFTEN = [Owner.request, Owner.decide, Owner.decide, Owner.send, Owner.send, Owner.reply]
RARE = [Owner.begin_episode, Owner.give_up, Owner.lose, Owner.be_late, Owner.hold]
STEPS = st.sampled_from([*OFTEN, *RARE])


@settings(max_examples=200)
@given(st.lists(st.tuples(STEPS, st.integers(0, 11)), min_size=20, max_size=60))
def test_whatever_happens_only_the_reply_to_the_request_in_flight_is_taken(script):
    owner = Owner()
    for step, number in (*script, (Owner.end, 0), *script[:20]):
        step(owner, number)
        owner.check()


@given(st.lists(st.integers(-5, 5)))
def test_one_call_runs_the_newest_waits_and_nobody_waits_for_a_free_place(script):
    """Positive: a call enters; negative: one of those that are here leaves."""
    turns, here = Turns[int](), []
    for number, step in enumerate(script):
        if step > 0:
            assert turns.enter(number) == (here.pop() if len(here) == 2 else None)
            here.append(number)
        elif here:
            left = here.pop(step % len(here))
            was_running = left == turns.running
            assert turns.leave(left) == (here[0] if here and was_running else None)
        assert turns.all == here
