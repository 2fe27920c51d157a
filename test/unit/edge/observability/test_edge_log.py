# SPDX-License-Identifier: Apache-2.0
"""What the edge writes to its log: changes once, what lasts once, and problems by their share."""

from __future__ import annotations

from collections import Counter

import pytest

from lerobot_serve.edge.observability.logs import (
    ChangeLog,
    LatchLog,
    ProblemLog,
    StandingReasonLog,
    StateLog,
)
from lerobot_serve.edge.session.connection import Connection, ConnectionEvent
from lerobot_serve.telemetry.log_throttle import Logs

S = 1_000_000_000
STEPS = 300


class Lines:
    """A log of one kind, and what it wrote."""

    def __init__(self, kind: type) -> None:
        self.now_ns, self.lines = 0, []
        logs = [lambda text, level=level: self.lines.append(f'{level} {text}') for level in 'IWE']
        self.log = kind(Logs(*logs, lambda: self.now_ns))


class Changes(Lines):
    """The log of a connection."""

    def __init__(self) -> None:
        super().__init__(ChangeLog)
        self.connection = Connection(lambda: self.now_ns, on_change=self.log.changed)

    def poll(self) -> list[str]:
        before = len(self.lines)
        self.log.poll(self.connection.status, ('/a', '/b'))
        return self.lines[before:]


class Problems(Lines):
    """A log of ten seconds a poll, with 300 control steps in each."""

    def __init__(self) -> None:
        super().__init__(ProblemLog)
        self.steps, self.counts, self.in_steps = 0, Counter(), Counter()

    def pass_period(self, in_steps: dict[str, int] | None = None, **counts: int) -> list[str]:
        before = len(self.lines)
        self.now_ns += 10 * S
        self.steps += STEPS
        self.counts.update(counts)
        self.in_steps.update(in_steps or {})
        self.log.poll(self.counts, self.in_steps, self.steps)
        return self.lines[before:]


# changes


def test_a_change_is_logged_once_with_its_reason():
    logged = Changes()
    assert logged.poll() == []
    logged.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
    logged.connection.handle(ConnectionEvent.REQUEST_FAILED, 'no reply within 5 s')
    assert logged.poll() == [
        'I CONNECTING -> STREAMING',
        'W STREAMING -> DEGRADED: no reply within 5 s',
    ]
    assert logged.poll() == []
    logged.connection.handle(ConnectionEvent.SESSION_LOST, '/a: gone')
    logged.connection.handle(ConnectionEvent.OFFLINE_TOO_LONG, 'no session for 60 s')
    assert logged.poll() == [
        'W DEGRADED -> RECONNECTING: /a: gone',
        'E RECONNECTING -> DEAD: no session for 60 s',
    ]


def test_a_state_to_and_fro_is_told_once_and_then_counted():
    logged = Changes()
    logged.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
    logged.poll()
    for _ in range(182):
        logged.connection.handle(ConnectionEvent.QUEUE_EMPTY, 'action queue empty')
        logged.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
        logged.poll()
    assert len(logged.lines) == 3
    logged.now_ns = 10 * S
    assert logged.poll() == [
        'W STREAMING -> STALLED: action queue empty (181 times in 10 s)',
        'I STALLED -> STREAMING (181 times in 10 s)',
    ]


def test_refusals_without_a_change_of_state_are_told_when_their_reason_changes():
    logged = Changes()
    logged.poll()
    for _ in range(45):
        logged.connection.handle(ConnectionEvent.SESSION_LOST, '/a: full')
        logged.poll()
    logged.connection.handle(ConnectionEvent.INCOMPATIBLE, '/a: arm_0.pos')
    logged.poll()
    assert logged.lines == ['W CONNECTING: /a: full', 'W CONNECTING: /a: arm_0.pos']


def test_what_is_wrong_before_the_first_poll_is_logged():
    logged = Changes()
    logged.connection.handle(ConnectionEvent.SESSION_LOST, '/a: not there')
    assert logged.poll() == ['W CONNECTING: /a: not there']
    assert logged.poll() == []


def test_waiting_for_a_server_is_said_once_and_not_where_one_is_found():
    waiting, found = Changes(), Changes()
    for logged in (waiting, found):
        assert logged.poll() == []
        logged.now_ns = S
        assert logged.poll() == []
    found.connection.handle(ConnectionEvent.CHUNK_MERGED, '')
    found.poll()
    for now_s in (4, 5, 600):
        for logged in (waiting, found):
            logged.now_ns = now_s * S
            logged.poll()
    assert waiting.lines == ['I waiting for /a, /b']
    assert found.lines == ['I CONNECTING -> STREAMING']


# why nothing is commanded


def logged(*looks: tuple[str, int]) -> list[str]:
    lines: list[str] = []
    waiting = StandingReasonLog(lines.append, 'no commands sent: ')
    for why, commands in looks:
        waiting.poll(why, commands)
    return lines


@pytest.mark.parametrize(
    ('looks', 'count'),
    [
        ([('far outside', 0)] * 9, 1),
        ([('far outside', 0), ('far outside', 0), ('', 0)] * 9, 1),
        # a moment's wait
        ([('1 of 3', 0), ('2 of 3', 0), ('', 1), ('1 of 3', 1)], 0),
        # after a command it is logged again
        ([('far outside', 0)] * 2 + [('', 5)] + [('far outside', 5)] * 2, 2),
    ],
)
def test_what_lasts_is_logged_once(looks, count):
    assert logged(*looks) == ['no commands sent: far outside'] * count


def test_a_latch_is_logged_once_and_its_reset_too():
    latch = Lines(LatchLog)
    for reason in ('', 'too fast', 'too fast', '', '', 'too far'):
        latch.log.poll(reason)
    assert [line.partition(';')[0] for line in latch.lines] == [
        'E Safety cage latched (too fast)',
        'I Safety cage reset',
        'E Safety cage latched (too far)',
    ]
    assert '~/reset_cage' in latch.lines[0]


# problems


def test_harmless_clamps_say_nothing_for_hours():
    """A gripper closes on its limit three times in ten seconds."""
    logged = Problems()
    for _ in range(1000):
        assert logged.pass_period({'cage, limit': 3}, cleared_action=9) == []


def test_one_line_when_a_share_begins_when_it_doubles_and_when_it_is_over():
    logged = Problems()
    shares = [3, 30, 33, 27, 80, 75, 40, 38, 3, 3]
    lines = [logged.pass_period({'cage, max_step': count}) for count in shares]
    last = 'of the control steps of the last 10 s'
    assert lines == [
        [],
        [f'W cage, max_step: 10% {last}, 0% before'],
        [],
        [],
        [f'W cage, max_step: 27% {last}, 10% before'],
        [],
        [f'W cage, max_step: 13% {last}, 27% before'],
        [],
        ['I cage, max_step: below 5% of the control steps again'],
        [],
    ]


def test_a_few_trips_for_the_state_are_not_hidden_by_many_harmless_ones():
    logged = Problems()
    assert len(logged.pass_period({'cage, limit': 254})) == 1
    (line,) = logged.pass_period({'cage, limit': 254, 'cage, position_unknown': 40})
    assert line.startswith('W cage, position_unknown: 13% ')


def test_a_new_kind_of_drop_does_not_wait_and_the_same_rate_is_said_once():
    logged = Problems()
    logged.counts['stalls'] = 1
    logged.log.poll(logged.counts, logged.in_steps, 1)
    assert logged.lines == ['W dropped or failed: stalls 1']
    assert [logged.pass_period(stalls=n) for n in (1, 1, 0, 1)] == [[], [], [], []]
    assert logged.pass_period(stalls=7) == ['W dropped or failed in the last 10 s: stalls 7']
    assert logged.pass_period(stalls=8, request_timeout=2) == [
        'W dropped or failed: request_timeout 2'
    ]
    assert logged.pass_period(stalls=2) == []
    assert logged.pass_period(stalls=7) == ['W dropped or failed in the last 10 s: stalls 7']


@pytest.mark.parametrize('flaps', [1, 50])
def test_a_state_that_is_lost_is_one_line_with_its_input_and_one_at_its_end(flaps):
    logged = Lines(StateLog)
    why = 'joint_states on /arm/joint_states is 0.62 s old, 0.5 s is allowed'
    held = 0
    for _ in range(flaps):
        for unknown, more in ((why, 3), ('', 2)):
            held += more
            logged.now_ns += S // 5
            logged.log.poll(unknown, why, held)
    assert logged.lines == [f'W commands are held, the state of the robot is not known: {why}']
    for _ in range(60):
        logged.now_ns += S
        logged.log.poll('', why, held)
    assert len(logged.lines) == 2 and f': {held} commands were held' in logged.lines[1]
    logged.log.poll(why, why, held + 1)
    assert len(logged.lines) == 3


def test_a_state_that_stays_away_is_not_called_known_again():
    logged = Lines(StateLog)
    logged.log.poll('gone', 'gone', 1)
    for _ in range(60):
        logged.now_ns += S
        logged.log.poll('gone', 'gone', 1)
    assert len(logged.lines) == 1
