# SPDX-License-Identifier: Apache-2.0
"""The session machine: each event in each state, and any script of an owner and its network."""

from __future__ import annotations

from collections.abc import Callable
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
ERRORS = SessionRefused(Refusal.CAPACITY, 'full'), ServerUnreachable('no response')
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


def machine_in(state: State) -> SessionMachine:
    """Return a machine that has requested a session."""
    machine: SessionMachine = SessionMachine('robot', EPOCHS - 1)
    asked = request(machine)
    if state is State.OPEN:
        machine.opened(asked, AGREED)
    elif state is State.CLOSED:
        machine.failed(asked, ERRORS[1])
    elif state is State.ENDED:
        machine.end()
    assert machine.state is state
    return machine


CALLS: dict[Event, Callable[[SessionMachine], object]] = {
    Event.REQUESTED: request,
    Event.OPENED: lambda machine: machine.opened(machine.requested, AGREED),
    Event.FAILED: lambda machine: machine.failed(machine.requested, ERRORS[0]),
    Event.LOST: lambda machine: machine.lost('gone'),
    Event.SENT: lambda machine: machine.sent(object()),
    Event.END: SessionMachine.end,
}


def test_each_event_in_each_state_leads_where_the_table_says_or_changes_nothing():
    header, *rows = (line.split() for line in TABLE.strip().splitlines())
    assert [Event[row[0]] for row in rows] == list(Event) and len(header) == len(State)
    for event, *after in rows:
        for before, expected in zip(header, after, strict=True):
            machine = machine_in(State[before])
            content = dict(vars(machine))
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
        self.open: SessionRequest | None = None
        self.sent = []
        self.awaited = None

    @precondition(lambda self: self.machine.state is not State.ENDED)
    @rule()
    def request(self):
        asked = request(self.machine)
        assert asked.reply_topic == f'/replies/{asked.session_epoch}'
        self.epochs.append(asked.session_epoch)
        self.undecided.append(asked)
        self.open = None

    @precondition(lambda self: self.undecided)
    @rule(data=st.data(), outcome=st.sampled_from((AGREED, *ERRORS)))
    def decide(self, data, outcome):
        asked = self.undecided.pop(data.draw(st.integers(0, len(self.undecided) - 1)))
        is_last = asked.session_epoch == self.epochs[-1]
        if not isinstance(outcome, OpenSessionResponse):
            self.machine.failed(asked, outcome)
            assert not is_last or self.machine.why_lost == str(outcome)
        elif self.machine.opened(asked, outcome):
            assert is_last and self.machine.session_epoch == asked.session_epoch
            assert (self.machine.episode, self.machine.seq) == (0, 0)
            self.open, self.awaited = asked, None
        else:
            assert not is_last or self.machine.state is State.ENDED

    @rule()
    def lose(self):
        self.machine.lost('gone')
        self.open = None

    @rule()
    def begin_episode(self):
        before = self.machine.episode_id
        self.machine.begin_episode()
        assert self.machine.episode_id != before
        self.awaited = None

    @precondition(lambda self: self.open and self.awaited is None)
    @rule()
    def send(self):
        self.sent.append(self.machine.next_header(0))
        self.machine.sent(len(self.sent))
        self.awaited = self.sent[-1]

    @precondition(lambda self: self.awaited)
    @rule()
    def mistake_a_second_request(self):
        with pytest.raises(RuntimeError, match='still in flight'):
            self.machine.sent(0)

    @rule()
    def give_up(self):
        released = self.machine.release()
        assert released == (len(self.sent) if self.awaited else None)
        self.awaited = None

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), part=st.sampled_from(('', 'seq', 'episode', 'session_epoch')))
    def reply(self, data, part):
        header = self.sent[-1 - data.draw(st.integers(0, min(3, len(self.sent) - 1)))]
        if part:
            header = replace(header, **{part: getattr(header, part) + 1})
        content = dict(vars(self.machine))
        if header == self.awaited:
            assert self.machine.take(header.for_reply(0)) == len(self.sent)
            self.awaited = None
        else:
            with pytest.raises(ReplyDropped) as dropped:
                self.machine.take(header.for_reply(0))
            assert dropped.value.reason in ('stale_epoch', 'stale_episode', 'late_chunk')
            assert vars(self.machine) == content

    @rule()
    def end(self):
        self.machine.end()
        self.open = self.awaited = None

    @invariant()
    def the_machine_knows_what_its_owner_did(self):
        assert len(set(self.epochs)) == len(self.epochs)
        assert self.machine.is_open == (self.open is not None)
        assert (self.machine.in_flight is None) == (self.awaited is None)
        requested = self.machine.requested
        assert requested is None or requested.session_epoch == self.epochs[-1]


TestScripts = Scripts.TestCase


@given(st.lists(st.integers(-5, 5)))
def test_one_call_runs_the_newest_waits_and_nobody_waits_for_a_free_place(script):
    """Positive: a call enters; negative: one of those that are here leaves."""
    turns, here = Turns[int](), []
    for number, step in enumerate(script):
        if step > 0:
            replaced = turns.enter(number)
            assert replaced == (here.pop() if len(here) == 2 else None)
            here.append(number)
        elif here:
            left = here.pop(step % len(here))
            was_running = left == turns.running
            assert turns.leave(left) == (here[0] if here and was_running else None)
        assert [each for each in (turns.running, turns.waiting) if each is not None] == here
