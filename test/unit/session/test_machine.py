# SPDX-License-Identifier: Apache-2.0
"""The session machine: each event in each state, and any script of an owner and its network."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, RuleBasedStateMachine
import pytest

from lerobot_serve.contract.records import OpenSessionResponse
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import (
    EPOCHS,
    ServerUnreachable,
    SessionRefused,
    SessionRequest,
)
from lerobot_serve.session.machine import Event, ReplyDropped, SessionMachine, State
from lerobot_serve.session.turns import Turns

TERMS = SessionRequest('robot', 7, 0, '', ('a',), ('a',), (), 30.0)
AGREED = OpenSessionResponse(schema_version=1)
REFUSED = SessionRefused(Refusal.CAPACITY, 'full')
OUTCOMES = st.sampled_from((AGREED, REFUSED, ServerUnreachable('no response')))
TABLE = """
           CLOSED   OPENING  OPEN     ENDED
REQUESTED  OPENING  OPENING  OPENING  -
OPENED     -        OPEN     -        ENDED
FAILED     -        CLOSED   -        ENDED
LOST       CLOSED   OPENING  CLOSED   ENDED
SENT       -        -        OPEN     -
END        ENDED    ENDED    ENDED    ENDED
"""


def request(machine: SessionMachine) -> SessionRequest:
    return machine.request(TERMS, '/replies/{}'.format)


CALLS = {
    Event.REQUESTED: request,
    Event.OPENED: lambda machine: machine.opened(machine.requested, AGREED),
    Event.FAILED: lambda machine: machine.failed(machine.requested, ServerUnreachable('away')),
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
            request(machine)
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


class Scripts(RuleBasedStateMachine):
    """An owner, and a network that delays, repeats and invents messages."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = SessionMachine[int]('robot')
        self.epochs: list[int] = []
        # the outcome of each comes once, in any order
        self.undecided: list[SessionRequest] = []
        self.is_open = False
        self.sent = []
        self.awaited = None

    @precondition(lambda self: self.machine.state is not State.ENDED)
    @rule()
    def request(self):
        self.undecided.append(request(self.machine))
        self.epochs.append(self.undecided[-1].session_epoch)
        assert self.undecided[-1].reply_topic == f'/replies/{self.epochs[-1]}'
        self.is_open = False

    @precondition(lambda self: self.undecided)
    @rule(data=st.data(), outcome=OUTCOMES)
    def decide(self, data, outcome):
        asked = self.undecided.pop(data.draw(st.integers(0, len(self.undecided) - 1)))
        is_last = asked.session_epoch == self.epochs[-1]
        if outcome is not AGREED:
            self.machine.failed(asked, outcome)
            assert not is_last or self.machine.why_lost == str(outcome)
            assert not is_last or (self.machine.requested is None) == (outcome is REFUSED)
        elif self.machine.opened(asked, outcome):
            assert is_last and self.machine.session_epoch == asked.session_epoch
            assert (self.machine.episode, self.machine.seq) == (0, 0)
            self.is_open, self.awaited = True, None
        else:
            assert not is_last or self.machine.state is State.ENDED

    @rule()
    def lose(self):
        self.machine.lost('gone')
        self.is_open = False

    @rule()
    def begin_episode(self):
        before = self.machine.episode_id
        self.machine.begin_episode()
        assert self.machine.episode_id != before
        self.awaited = None

    @precondition(lambda self: self.is_open)
    @rule()
    def send(self):
        if self.awaited:
            with pytest.raises(RuntimeError, match='still in flight'):
                self.machine.sent(0)
            return
        self.awaited = self.machine.next_header(0)
        self.sent.append(self.awaited)
        self.machine.sent(len(self.sent))

    @rule()
    def give_up(self):
        assert self.machine.release() == (len(self.sent) if self.awaited else None)
        self.awaited = None

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(1, 4), part=st.sampled_from(('', 'seq', 'episode', 'session_epoch')))
    def reply(self, back, part):
        header = self.sent[-min(back, len(self.sent))]
        if part:
            header = replace(header, **{part: getattr(header, part) + 1})
        content = dict(vars(self.machine))
        if header == self.awaited:
            assert self.machine.take(header.for_reply(0)) == len(self.sent)
            self.awaited = None
        else:
            with pytest.raises(ReplyDropped, match=r'stale_epoch|stale_episode|late_chunk'):
                self.machine.take(header.for_reply(0))
            assert vars(self.machine) == content

    @rule()
    def end(self):
        self.machine.end()
        self.is_open, self.awaited = False, None

    @invariant()
    def the_machine_knows_what_its_owner_did(self):
        assert len(set(self.epochs)) == len(self.epochs)
        assert self.machine.is_open == self.is_open
        assert (self.machine.in_flight is None) == (self.awaited is None)


TestScripts = Scripts.TestCase


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
