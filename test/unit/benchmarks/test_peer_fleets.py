# SPDX-License-Identifier: Apache-2.0
"""Many robots of a peer in one process, and what is said of them."""

from __future__ import annotations

import asyncio
from collections import Counter
import contextlib
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers import fleet_results, lerobot, openpi, paced_robots
from benchmarks.peers.fleet_results import FleetReplies, MeasuredBlock, OURS
from benchmarks.peers.paced_robots import RobotCounts
from benchmarks.peers.peer_process import CHUNK_ROWS, frames, ImageSet, JOINTS, LOST

SMALL = ImageSet(2, 24, 32)


# how they ask


def test_turns_are_spread_over_the_period_and_the_same_in_every_run():
    turns = paced_robots.due_s(20, 3.0, 2.0)
    assert turns.shape == (20, 6)
    assert ((turns[:, 0] >= 0) & (turns[:, 0] < 0.5)).all()
    assert len(set(turns[:, 0])) == 20
    assert np.allclose(np.diff(turns), 0.5)
    assert np.array_equal(turns, paced_robots.due_s(20, 3.0, 2.0))


def robot_that(takes_s: float, outcome: float | str):
    async def ask():
        await asyncio.sleep(takes_s)
        return outcome

    return ask


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop in which nothing takes time but to sleep, and that takes none of ours."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        # nothing else is to be done: it is as late as the next that sleeps wants it
        if self._scheduled and not self._ready:
            self.now_s = max(self.now_s, self._scheduled[0].when())
        super()._run_once()


def paced(robots, seconds: float, rate_hz: float) -> list[RobotCounts]:
    with contextlib.closing(VirtualTime()) as loop:
        return loop.run_until_complete(paced_robots.pace(robots, seconds, rate_hz))


def test_a_quick_robot_asks_at_every_turn():
    quick, lossy = paced([robot_that(0.0, 1.5), robot_that(0.0, LOST)], 0.5, 20.0)
    assert asdict(quick) == asdict(RobotCounts(10, 0, [1.5] * 10, {}))
    assert asdict(lossy) == asdict(RobotCounts(10, 0, [], {LOST: 10}))


def test_a_robot_that_waits_passes_turns_over():
    (slow,) = paced([robot_that(0.25, 250.0)], 1.0, 10.0)
    assert (slow.sent, slow.passed_over) == (4, 6)


def test_an_answer_that_took_too_long_is_lost():
    lived = RobotCounts()
    lived.note(paced_robots.LOST_AFTER_S * 1e3 + 1)
    lived.note(paced_robots.LOST_AFTER_S * 1e3)
    assert (lived.sent, lived.failures, len(lived.latencies_ms)) == (2, {LOST: 1}, 1)


@pytest.fixture
def loop():
    loop = paced_robots.background_event_loop()
    yield loop
    loop.call_soon_threadsafe(loop.stop)


def test_robots_are_opened_once_and_paced_by_orders(loop):
    opened = []

    def connect(number):
        opened.append(number)
        return lambda pictures: float(len(pictures))

    orders = paced_robots.orders(paced_robots.blocking(connect), loop)
    assert orders['open'](2, str(SMALL)) == 2
    assert orders['open'](3, str(SMALL)) == 3
    assert opened == [0, 1, 2]
    told = orders['pace'](0.1, 20.0)
    # on a busy machine a turn may pass while the first is waited for
    assert [one['sent'] + one['passed_over'] for one in told] == [2] * 3
    assert {ms for one in told for ms in one['latencies_ms']} == {2.0}


# what a server of openpi's format answers


class Connection:
    """A client that sends these messages and hangs up."""

    def __init__(self, *messages):
        self._messages, self.sent = list(messages), []

    async def send(self, message):
        self.sent.append(message)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.pop(0)


def test_openpi_s_client_hears_metadata_then_a_chunk_for_each_observation():
    asked = openpi.observation(frames(SMALL))
    assert {'observation/front', 'observation/wrist', openpi.STATE} < set(asked)
    connection = Connection(asked, asked)
    asyncio.run(openpi.attend(connection, lambda value: value, lambda value: value))
    metadata, *answers = connection.sent
    assert metadata == openpi.METADATA
    assert [answer['actions'].shape for answer in answers] == [(CHUNK_ROWS, JOINTS)] * 2
    assert isinstance(openpi.outcome(answers[0], 0), float)


def test_an_answer_of_the_wrong_shape_is_no_chunk():
    assert openpi.outcome({'actions': np.zeros((3, JOINTS))}, 0) == openpi.WRONG


# what becomes of LeRobot's robots


class Client:
    """LeRobot's, as far as a trip touches it: what it receives is said beforehand."""

    def __init__(self, step: int | None, rows: int = CHUNK_ROWS):
        self._step, self._rows = step, rows
        self.action_queue = None
        self.must_go = SimpleNamespace(clear=lambda: None, wait=lambda s: step is not None)

    def send_observation(self, seen):
        if self._step is not None:
            for row in range(self._rows):
                self.action_queue.put(SimpleNamespace(get_timestep=lambda r=row: self._step + r))


@pytest.mark.parametrize(
    ('client', 'outcome'),
    [
        (Client(None), LOST),
        (Client(lerobot.STEPS_APART + 7, rows=3), LOST),
        (Client(lerobot.STEPS_APART + 6), lerobot.LATE),
        (Client(7), lerobot.ANOTHERS),
        (Client(2 * lerobot.STEPS_APART), lerobot.ANOTHERS),
    ],
)
def test_whose_chunk_came_is_known(client, outcome):
    seen = SimpleNamespace(get_timestep=lambda: lerobot.STEPS_APART + 7)
    assert lerobot.outcome(client, seen, 0.1) == outcome


def test_the_chunk_that_was_asked_for_has_a_time():
    seen = SimpleNamespace(get_timestep=lambda: lerobot.STEPS_APART + 7)
    assert isinstance(lerobot.outcome(Client(lerobot.STEPS_APART + 7), seen, 0.1), float)


def test_a_robot_of_lerobot_sends_what_it_sees():
    assert set(lerobot.observation(frames(SMALL))) == {
        *lerobot.JOINT_NAMES,
        'front',
        'wrist',
        'task',
    }


# what is said of them


def block(*latencies_ms, sent=None, server_s=0.1, seconds=1.0):
    counts = Counter(sent=sum(map(len, latencies_ms)) if sent is None else sent)
    return MeasuredBlock(FleetReplies(latencies_ms, counts), seconds, server_s, 0.2, 50.0)


def test_what_robots_said_is_summed_up():
    asked = fleet_results.parse_replies(
        [
            asdict(RobotCounts(3, 1, [1.0, 2.0], {LOST: 1})),
            asdict(RobotCounts(2, 0, [], {LOST: 1, 'no chunk': 1})),
        ]
    )
    assert asked.latencies_ms == [[1.0, 2.0], []]
    assert asked.counts == {'sent': 5, 'passed_over': 1, LOST: 2, 'no chunk': 1}


@pytest.mark.parametrize(
    ('answered', 'share'),
    [([5, 5, 5, 5], 1.0), ([0, 10], 0.0), ([8, 12], 0.8), ([0, 0], 0.0), ([3], 1.0)],
)
def test_the_worst_robot_is_held_against_the_mean(answered, share):
    assert fleet_results.worst_share(answered) == pytest.approx(share)


def test_figures_are_those_of_all_blocks():
    case = fleet_results.describe('x', [block([1.0] * 4, [2.0] * 4), block([1.0] * 4, [2.0] * 2)])
    told = case.parameters
    assert told['chunks_per_s'] == 7.0
    assert told['worst_robots_share_of_the_mean'] == pytest.approx(6 / 7, abs=1e-3)
    assert told['server_share_of_a_core'] == 0.1
    assert told['server_percent_of_a_core_a_robot'] == 5.0
    assert told['server_cpu_ms_a_chunk'] == pytest.approx(200 / 14, abs=1e-3)
    assert case.counts == {'answered': 14, 'sent': 14}
    assert len(case.series_ms['round trip']) == 14


def test_nobody_answered_is_told_and_no_crash():
    case = fleet_results.describe('x', [block([], [], sent=4)])
    assert case.parameters['server_cpu_ms_a_chunk'] == 'no chunk'
    assert case.parameters['worst_robots_share_of_the_mean'] == 0.0
    assert case.as_json()['series_ms']['round trip'] == {'n': 0}


def told(ours, other):
    return fleet_results.cases(2, {OURS: [ours], 'openpi': [other]})


def test_this_package_is_set_against_the_others():
    ours, other = told(block([1.0] * 4, [1.0] * 4), block([2.0] * 4, [2.0] * 4))
    assert (ours.name, other.name) == ('2 robots: this package', '2 robots: openpi')
    assert ours.ratios['round trip / openpi']['median'] == 0.5
    assert set(ours.goals.values()) == {True}
    assert not other.goals


@pytest.mark.parametrize(
    ('ours', 'missed'),
    [
        (block([3.0] * 4, [3.0] * 4), 'p99 below that of openpi'),
        (block([1.0] * 4, [1.0] * 4, sent=9), 'every chunk comes'),
        (block([1.0] * 4, [1.0] * 3), 'no robot gets less than 90% of the mean'),
    ],
)
def test_a_goal_is_missed_where_it_is_missed(ours, missed):
    goals = told(ours, block([2.0] * 4, [2.0] * 4))[0].goals
    assert [goal for goal, holds in goals.items() if not holds] == [missed]


def test_one_robot_is_one():
    assert fleet_results.case_name(1, 'openpi') == '1 robot: openpi'


@pytest.mark.parametrize(
    ('ms', 'server_s', 'holds'),
    [(1.0, 0.1, (True, True)), (1.1, 0.1, (False, True)), (1.0, 0.2, (True, False))],
)
def test_over_zenoh_neither_time_nor_processor_is_above_openpis(ms, server_s, holds):
    zenoh = block([ms] * 8, [ms] * 8, server_s=server_s)
    other = block([1.0] * 8, [1.0] * 8)
    case, _ = fleet_results.cases(2, {fleet_results.ZENOH: [zenoh], 'openpi': [other]})
    goals = list(case.goals.items())[-2:]
    assert tuple(held for _, held in goals) == holds
    assert goals[0][0] == 'median at most that of openpi'
