# SPDX-License-Identifier: Apache-2.0
"""One run of an episode: every way to end, and that the first one counts."""

from __future__ import annotations

import pytest
from support.edge.controller_rig import Bench, STEP_NS

from lerobot_serve.edge.episodes.active_episode import (
    ActiveEpisode,
    begin_run,
    REPORTED_OUTCOMES,
    RunOutcome,
)
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve_interfaces.action import RunEpisode
from lerobot_serve_interfaces.msg import EpisodeOutcome

S = 1_000_000_000


def run(max_duration_s: float = 0.0) -> ActiveEpisode:
    return ActiveEpisode(5 * S, max_duration_s, 'fold-1', 0, 0, 0)


def check(
    present: ActiveEpisode, at_s: float = 6.0, **changes: object
) -> tuple[RunOutcome, str] | None:
    known = {
        'state': ConnectionState.STREAMING,
        'reason': 'fine',
        'latched': False,
        'stopped': False,
    }
    return present.check(int(at_s * S), **(known | changes))


@pytest.mark.parametrize(
    'state', [state for state in ConnectionState if state != ConnectionState.DEAD]
)
def test_it_goes_on_whatever_the_connection_does(state):
    assert check(run(), state=state) is None


ENDS = [
    (
        {'state': ConnectionState.DEAD, 'reason': 'no session for 60 s'},
        RunOutcome.DEAD,
        'no session for 60 s',
    ),
    ({'latched': True}, RunOutcome.STOPPED, 'Safety cage latched'),
    ({'stopped': True}, RunOutcome.STOPPED, 'Stop service called'),
    ({'at_s': 15.0}, RunOutcome.TIMEOUT, '10 s elapsed'),
]


@pytest.mark.parametrize(('changes', 'outcome', 'text'), ENDS)
def test_it_ends_by_itself(changes, outcome, text):
    assert check(run(10.0), **changes) == (outcome, text)


def test_time_ends_it_not_a_moment_too_soon_and_never_without_a_bound():
    assert check(run(10.0), at_s=14.999) is None
    assert check(run(0.0), at_s=1e9) is None


def test_the_first_to_say_so_counts():
    ended = run(10.0)
    ended.end(RunOutcome.SUCCESS, 'in the box')
    ended.end(RunOutcome.CANCELLED, 'cancelled')
    assert check(ended, at_s=99.0, state=ConnectionState.DEAD, latched=True) == (
        RunOutcome.SUCCESS,
        'in the box',
    )
    given_up = run()
    assert check(given_up, state=ConnectionState.DEAD, reason='gone')[0] is RunOutcome.DEAD
    assert check(given_up) == (RunOutcome.DEAD, 'gone')


def test_the_outcomes_are_those_of_the_action():
    for outcome in RunOutcome:
        assert getattr(RunEpisode.Result, outcome.name) == outcome
    assert {
        EpisodeOutcome.SUCCESS: RunOutcome.SUCCESS,
        EpisodeOutcome.FAILURE: RunOutcome.FAILURE,
        EpisodeOutcome.ABORTED: RunOutcome.FAILURE,
    } == REPORTED_OUTCOMES


def test_it_counts_from_its_beginning():
    bench = Bench()
    bench.plan(1.0, 2.0, age_ns=50)
    bench.commands(2 + 3)
    controller = bench.controller
    begun = begin_run(controller, 7 * S, 2.0, 'fold-1')
    assert (begun.started_ns, begun.max_duration_s, begun.verdict) == (7 * S, 2.0, None)
    assert (begun.actions_executed, begun.stalls, begun.cage_trips) == (5, 1, 0)
    assert begun.elapsed_s(9 * S + S // 2) == 2.5
    assert controller.oldest_age_ns == 0
    bench.plan(1.0, age_ns=STEP_NS)
    bench.step()
    assert controller.oldest_age_ns == STEP_NS
