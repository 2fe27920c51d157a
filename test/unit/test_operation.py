"""Who has the say over the robot, and what each of them means for the tick and the requests."""

from __future__ import annotations

from controller_rig import Bench as Tick
from controller_rig import GIVING_UP, LADDER
import pytest
from requester_rig import Bench as Requests
from requester_rig import Simulation

from lerobot_serve.edge.link import Episode
from lerobot_serve.edge.operation import Diversions, Operation, Say
from lerobot_serve.edge.rungs import Rung, RungKind
from lerobot_serve.edge.states import Event, State

PAUSE = (Rung(RungKind.HOLD),)
DIVERSIONS = Diversions(LADDER, PAUSE, GIVING_UP)
DEAD = (Event.MERGED, Event.LOST, Event.VIOLATION)


class Robot:
    """An operation around a controller and a requester, whose thread does not run."""

    def __init__(self, *, runs_by_itself: bool = True, **tick: object) -> None:
        self.tick, self.requests = Tick(**tick), Requests()
        self.orders, self.rests = [], []
        controller, requester = self.tick.controller, self.requests.requester
        divert, release, rest = controller.divert, controller.release, requester.rest
        controller.divert = lambda *given: (self.orders.append(given), divert(*given))
        controller.release = lambda: (self.orders.append('release'), release())
        requester.rest = lambda *, resting: (self.rests.append(resting), rest(resting=resting))
        self.operation = Operation(
            controller, requester, DIVERSIONS, runs_by_itself=runs_by_itself
        )

    def lives_through(self, *events: Event) -> None:
        for event in events:
            self.requests.connection.on(event, 'told so')
        self.operation.look()


def test_by_default_the_policy_has_the_say_from_the_start():
    robot = Robot()
    robot.operation.look()
    assert robot.operation.say is Say.POLICY
    assert (robot.orders, robot.rests) == ([], [])
    robot.tick.plan(1.0, 2.0)
    assert robot.tick.commands(2) == [1.0, 2.0]


def test_a_robot_that_does_not_run_by_itself_waits_for_an_episode():
    robot = Robot(runs_by_itself=False)
    assert robot.operation.say is Say.NOBODY
    assert (robot.orders, robot.rests) == ([(LADDER, 'no_episode')], [True])
    robot.tick.plan(1.0, 2.0)
    assert robot.tick.commands(2) == [None, None]
    robot.operation.begin(Episode())
    assert (robot.operation.say, robot.rests) == (Say.POLICY, [True, False])
    robot.operation.end()
    assert (robot.operation.say, robot.rests) == (Say.NOBODY, [True, False, True])
    assert robot.orders[-2:] == ['release', (LADDER, 'no_episode')]


def test_a_pause_comes_to_rest_and_what_is_left_is_played_afterwards():
    robot = Robot()
    robot.tick.plan(1.0, 2.0, 3.0)
    robot.tick.step()
    robot.operation.pause()
    assert robot.operation.paused
    assert (robot.operation.say, robot.rests) == (Say.OPERATOR, [True])
    executed = robot.tick.step()
    assert executed.decision.reason == 'hold: paused'
    robot.operation.resume()
    assert not robot.operation.paused
    assert (robot.operation.say, robot.rests) == (Say.POLICY, [True, False])
    assert robot.tick.commands(2) == [2.0, 3.0]


def test_each_is_told_once():
    robot = Robot()
    for _ in range(3):
        robot.operation.pause()
        robot.operation.look()
    assert (robot.orders, robot.rests) == ([(PAUSE, 'paused')], [True])
    for _ in range(3):
        robot.operation.resume()
    assert (robot.orders, robot.rests) == ([(PAUSE, 'paused'), 'release'], [True, False])


def test_a_robot_that_is_given_up_is_torn_down_once_until_somebody_begins():
    robot = Robot()
    robot.tick.plan(0.0)
    robot.tick.step()
    robot.lives_through(*DEAD)
    for _ in range(30):
        robot.operation.look()
        robot.tick.step()
    assert robot.operation.say is Say.TEARDOWN
    assert (robot.orders, robot.tick.stops) == ([(GIVING_UP, 'given_up')], 1)
    robot.tick.plan(5.0, 6.0)
    assert robot.tick.commands(1) == [None]
    # what was left ends with the episode
    robot.operation.begin(Episode())
    assert robot.requests.connection.state == State.CONNECTING
    assert robot.operation.say is Say.POLICY
    assert set(robot.orders[1:]) == {'release'}
    robot.tick.plan(7.0)
    assert robot.tick.commands(1)[0] == 5.0


def test_an_episode_also_ends_a_stop_that_the_ladder_came_to_by_itself():
    robot = Robot(ladder=GIVING_UP)
    robot.tick.plan(0.0)
    robot.tick.commands(20)
    assert robot.tick.stops == 1
    robot.tick.plan(1.0)
    assert robot.tick.commands(1) == [None]
    robot.operation.begin(Episode())
    robot.tick.plan(2.0)
    assert None not in robot.tick.commands(2)


TABLE = [
    # dead, paused, an episode runs -> who has it
    (False, False, True, Say.POLICY),
    (False, False, False, Say.NOBODY),
    (False, True, True, Say.OPERATOR),
    (False, True, False, Say.OPERATOR),
    (True, False, True, Say.TEARDOWN),
    (True, False, False, Say.TEARDOWN),
    (True, True, True, Say.TEARDOWN),
    (True, True, False, Say.TEARDOWN),
]


@pytest.mark.parametrize(('dead', 'paused', 'runs', 'say'), TABLE)
def test_who_has_the_say(dead, paused, runs, say):
    robot = Robot(runs_by_itself=runs)
    if paused:
        robot.operation.pause()
    if dead:
        robot.lives_through(*DEAD)
    assert robot.operation.say is say
    assert robot.requests.requester._resting.is_set() == (say is not Say.POLICY)


def test_who_begins_while_paused_waits_until_somebody_resumes():
    robot = Robot(runs_by_itself=False)
    robot.operation.pause()
    robot.operation.begin(Episode())
    assert robot.operation.say is Say.OPERATOR
    robot.operation.resume()
    assert robot.operation.say is Say.POLICY


def test_between_two_episodes_nothing_is_asked():
    bench = Simulation(servers=('/a',))
    operation = Operation(Tick().controller, bench.requester, DIVERSIONS, runs_by_itself=False)
    bench.at(2.0, lambda: operation.begin(Episode('', 'one')))
    bench.at(4.0, operation.end)
    bench.at(8.0, lambda: operation.begin(Episode('', 'two')))
    bench.run(9.0)
    times = [at_s for at_s, _, _ in bench.requests]
    assert min(times) == 2.0
    assert [at_s for at_s in times if 4.0 < at_s < 8.0] == []
    names = {request.episode_id: at_s for at_s, _, request in bench.requests}
    assert list(names) == ['one', 'two']
