# SPDX-License-Identifier: Apache-2.0
"""Neither a system clock that steps nor a simulator without a clock stops what bounds motion."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from action_msgs.msg import GoalStatus
import pytest
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from support.nodes.edge_rig import EdgeRig
from support.nodes.router_rig import RouterRig
from support.processes.stepped_clock import SteppedClock

from lerobot_serve.contract.schema import Status
from lerobot_serve.errors import UserError
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve.ros.node.steady_clock import SteadyClockActionServer, SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.recorder.node import RecorderNode
from lerobot_serve.tools.recorder.settings import RecorderSettings
from lerobot_serve_interfaces.action import RunEpisode
from lerobot_serve_interfaces.msg import CanaryState, RouterState, ServerStatus

pytestmark = pytest.mark.long

TIMEOUT = GoalStatus.STATUS_ABORTED, RunEpisode.Result.TIMEOUT
STEPS_S = -15.0, 3600.0, -3600.0
# a run of a second on a slow machine, and less than the shortest step back
RUN_LIMIT_S = 12.0
MORE = 2
TOLD = RouterState, CanaryState, ServerStatus


@pytest.fixture
def clock(tmp_path) -> Iterator[SteppedClock]:
    stepped = SteppedClock(tmp_path)
    yield stepped
    # before the processes end: the middleware's own threads wait on the system clock
    stepped.step_to(0.0)


def tells(rig: RouterRig, kind: type) -> None:
    """Wait until a node has told of itself a few more times."""
    for _ in range(MORE):
        before = rig.watch.last.get(kind)
        rig.wait(lambda b=before: rig.watch.last.get(kind) is not b, f'one more {kind.__name__}')


def start_idle(rig: EdgeRig, **parameters: object) -> None:
    rig.start_server(**parameters)
    rig.start(run_on_start=False, **parameters)
    rig.wait(lambda: rig.seen.states, 'the state of the edge')


def runs_for_a_second(rig: EdgeRig) -> None:
    """Run an episode, see the robot move and the run end by its own limit."""
    run = rig.run(max_duration_s=1.0)
    rig.wait_for_play()
    rig.wait(lambda: run.ended, 'a run of one second ends', RUN_LIMIT_S)
    status, result = run.result()
    assert (status, result.outcome) == TIMEOUT


def stamp_s(message: object) -> float:
    return message.stamp.sec + message.stamp.nanosec / 1e9


@pytest.mark.slow
def test_an_edge_in_simulated_time_without_a_clock_ends_its_runs(edge_rig):
    start_idle(edge_rig, use_sim_time=True)
    runs_for_a_second(edge_rig)
    assert {stamp_s(state) for state in edge_rig.seen.states} == {0.0}
    edge_rig.wait(lambda: 'nothing publishes /clock' in edge_rig.log(), 'a warning')


@pytest.mark.slow
def test_simulated_time_is_set_live_and_is_in_the_stamps(edge_rig):
    start_idle(edge_rig)
    run = edge_rig.run(max_duration_s=3.0)
    edge_rig.wait_for_play()
    edge_rig.set(use_sim_time=True)
    edge_rig.wait(lambda: stamp_s(edge_rig.seen.last) == 0.0, 'a stamp without /clock')
    edge_rig.wait_for_play()
    clock = edge_rig.node.create_publisher(Clock, '/clock', 1)
    told = Clock()
    told.clock.sec = 77

    def is_stamped() -> bool:
        clock.publish(told)
        return edge_rig.seen.last.stamp.sec == 77

    edge_rig.wait(is_stamped, 'the stamp of the simulator')
    status, result = run.result()
    assert (status, result.outcome) == TIMEOUT
    edge_rig.set(use_sim_time=False)
    edge_rig.wait(lambda: stamp_s(edge_rig.seen.last) > 1e9, 'the stamp of the system clock')


@pytest.mark.slow
@pytest.mark.parametrize('step_s', STEPS_S)
def test_a_run_ends_in_time_though_the_system_clock_steps(edge_rig, clock, step_s):
    edge_rig.start_server()
    edge_rig.fleet.environment.update(clock.environment)
    edge_rig.start(run_on_start=False)
    edge_rig.wait(lambda: edge_rig.seen.states, 'the state of the edge')
    run = edge_rig.run(max_duration_s=1.0)
    before_s = stamp_s(edge_rig.wait(lambda: edge_rig.seen.states, 'a state')[-1])
    clock.step_to(step_s)
    edge_rig.wait(
        lambda: abs(stamp_s(edge_rig.seen.last) - before_s - step_s) < RUN_LIMIT_S / 2,
        'a state with the other stamp',
        RUN_LIMIT_S,
    )
    edge_rig.wait(lambda: run.ended, 'a run of one second ends', RUN_LIMIT_S)
    assert run.result()[1].outcome == RunEpisode.Result.TIMEOUT
    runs_for_a_second(edge_rig)


def start_router(rig: RouterRig, **parameters: object) -> None:
    """Start a router with two servers, and listen to what one of them tells of itself."""
    for slot in ('a', 'b'):
        rig.server(slot, slot, **parameters)
    rig.router(slot_a=['a'], slot_b=['b'], **parameters)
    rig.wait_for_health('healthy')
    keep = partial(rig.watch.last.__setitem__, ServerStatus)
    rig.node.create_subscription(
        ServerStatus, '/a/policy_server/status', lambda message: keep(message), qos.STATE
    )


@pytest.mark.slow
def test_routers_and_servers_go_on_though_the_system_clock_steps(router_rig, clock):
    router_rig.fleet.environment.update(clock.environment)
    start_router(router_rig)
    robot = router_rig.robot()
    for step_s in STEPS_S:
        clock.step_to(step_s)
        for kind in TOLD:
            tells(router_rig, kind)
        assert robot.round_trip(episode_id=f'after {step_s}').status == Status.OK


@pytest.mark.slow
def test_a_router_and_its_servers_go_on_in_simulated_time_without_a_clock(router_rig):
    start_router(router_rig, use_sim_time=True)
    for kind in TOLD:
        tells(router_rig, kind)
        assert stamp_s(router_rig.watch.last[kind]) == 0.0


def test_a_recorder_refuses_simulated_time(runtime, node, tmp_path):
    recorder = RecorderNode(runtime, RecorderSettings(tmp_path / 'bag'))
    runtime.add(recorder)
    client = node.create_client(SetParameters, '/recorder/set_parameters')
    wanted = [Parameter('use_sim_time', value=True).to_parameter_msg()]
    result = call_service(client, SetParameters.Request(parameters=wanted), 10.0).results[0]
    assert not result.successful
    assert 'use_sim_time must be false for recorder: a bag holds' in result.reason


@pytest.mark.parametrize(
    ('value', 'refusal'),
    [('true', 'must be false for refusing: no reason'), ('1', 'must be true or false')],
)
def test_a_wrong_start_is_refused_with_a_sentence(value, refusal):
    class Refusing(SteadyClockNode):
        sim_time_refusal = 'no reason'

    runtime = NodeRuntime(['--ros-args', '-p', f'use_sim_time:={value}'])
    try:
        with pytest.raises(UserError, match=f'use_sim_time {refusal}'):
            Refusing('refusing', context=runtime.context)
    finally:
        runtime.close()


def test_timers_rates_and_action_servers_are_steady(runtime):
    node = SteadyClockNode('steady', context=runtime.context)
    server = SteadyClockActionServer(node, RunEpisode, 'run', lambda goal: RunEpisode.Result())
    steady = node.create_timer(1.0, lambda: None).clock.clock_type
    assert steady.name == 'STEADY_TIME'
    assert node.create_rate(1.0)._timer.clock.clock_type == steady
    server.destroy()
    node.destroy_node()
