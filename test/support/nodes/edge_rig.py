# SPDX-License-Identifier: Apache-2.0
"""An edge controller in a process of its own, a robot that the test plays, and what is seen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
import signal
import subprocess
import threading
import time
from typing import Any

import pytest
from rcl_interfaces.srv import SetParameters
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.parameter import Parameter
from std_srvs.srv import Trigger

from benchmarks.harness.processes import NodeProcesses
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve_interfaces.action import RunEpisode
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction
from support.nodes.played_robot import Body, ROBOT, robot_yaml
from support.nodes.service_asking import ask as ask_service
from support.processes.in_executor import in_executor
from support.processes.native_stacks import print_stacks

EDGE = f'{ROBOT}/edge_controller'
LIMIT_S = 60.0
RESULTS = RunEpisode.Impl.GetResultService
NULL = {'policy_kind': 'null', 'policy_path': 'joints=6,chunk=60,cameras=,fps=30'}
# half a second, so that no chunk outlasts the start of a server
SHORT = {'policy_path': 'joints=6,chunk=15,cameras=,fps=30'}
# as fast as a test wants it, and as small as the network of one machine
FAST = {
    'request_timeout_s': 0.3,
    'reconnect_initial_backoff_s': 0.05,
    'reconnect_max_backoff_s': 0.5,
    'status_period_s': 0.02,
}
# no silence because a busy machine was slow: none of its waits is as long
CALM = {'state_timeout_s': 5.0}
# and no stall: of a chunk of seven seconds five are left when the next one is asked for, and both
# together are never too old
BUFFERED = {**CALM, 'request_threshold_s': 5.0, 'max_action_age_s': 15.0}
SAME = {'policy_path': 'joints=6,chunk=90,cameras=,fps=30'}
LEFT, RIGHT = '/left/policy_server', '/right/policy_server'


class Seen:
    """Everything that one edge tells; the executor's thread stores, the test reads."""

    def __init__(self, node: Node, edge: str = EDGE) -> None:
        self.states: list[EdgeState] = []
        self.executed: list[ExecutedAction] = []
        node.create_subscription(EdgeState, f'{edge}/state', self.states.append, qos.STATE)
        node.create_subscription(
            ExecutedAction, f'{edge}/executed_action', self.executed.append, qos.EXECUTED_ACTION
        )

    @property
    def last(self) -> EdgeState:
        return self.states[-1] if self.states else EdgeState()

    @property
    def played(self) -> list[ExecutedAction]:
        """The actions of a policy, without what the ladder did between them."""
        return [action for action in self.executed if action.rung == EdgeState.RUNG_POLICY]

    @property
    def rungs(self) -> set[int]:
        return {action.rung for action in self.executed}

    def drops(self) -> dict[str, int]:
        return {drop.reason: drop.count for drop in self.last.dropped}


class EdgeRig:
    """Used by the test's thread; the node spins in the background."""

    def __init__(self, node: Node, fleet: NodeProcesses, folder: Path) -> None:
        self.node, self.fleet, self.folder = node, fleet, folder
        self.seen, self.body = Seen(node), Body(node)
        self.robot = robot_yaml()
        self._servers = 0
        # edges, in the order of their starts
        self.processes: list[subprocess.Popen] = []
        self._clients: dict[str, Any] = {}
        self._outcomes = node.create_publisher(
            EpisodeOutcome, f'{ROBOT}/episode_outcome', qos.OUTCOME
        )
        self._runs = in_executor(
            node, partial(ActionClient, node, RunEpisode, f'{EDGE}/run_episode')
        )
        # younger than the client of goals, so that who has found this one has found both
        self._results = node.create_client(RESULTS, f'{EDGE}/run_episode/_action/get_result')

    def play_robot(self, namespace: str) -> Body:
        """Give another robot its inputs."""
        return Body(self.node, namespace)

    def start_server(self, namespace: str = '', **parameters: object) -> subprocess.Popen:
        """Start a policy server; one that answers at once unless something else is said."""
        self._servers += 1
        return self.fleet.start(
            f'server_{self._servers}',
            'policy_server',
            namespace=namespace,
            **{'session_grace_s': 0.0, **NULL, **parameters},
        )

    def start(self, *, namespace: str = ROBOT, **parameters: object) -> subprocess.Popen:
        """Start the edge with the robot as it is now."""
        name = namespace.strip('/')
        file = self.folder / f'{name}.yaml'
        file.write_text(self.robot)
        state = self.folder / f'{name}_state'
        given = {'robot_file': file, 'state_folder': state, **FAST, **parameters}
        process = self.fleet.start(f'edge_{name}', 'edge_controller', namespace=namespace, **given)
        self.processes.append(process)
        return process

    def log(self, name: str = 'edge_robot_1') -> str:
        return (self.folder / f'{name}.log').read_text()

    def kill(self, process: subprocess.Popen) -> None:
        """End a process as a power cut does."""
        process.kill()
        process.wait(LIMIT_S)

    def stop(self, process: subprocess.Popen) -> None:
        """End a process as an operator does: it says goodbye."""
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0

    def wait(self, holds: Callable[[], object], what: str, limit_s: float = LIMIT_S) -> Any:
        """Return what `holds` returns as soon as it is true; fail after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if value := holds():
                return value
            time.sleep(0.005)
        print_stacks(self.fleet.processes)
        states = '; '.join(f'{each.state} {each.reason}' for each in self.seen.states[-8:])
        return pytest.fail(f'{what}: not within {limit_s:g} s; the last states: {states}')

    def wait_for_play(self, count: int = 5) -> None:
        """Wait until so many more actions of a policy are executed."""
        before = len(self.seen.played)
        self.wait(lambda: len(self.seen.played) >= before + count, 'actions are executed')

    def wait_for_state(self, *states: int, reason: str = '') -> EdgeState:
        """Wait until the edge says one of these, with these words in its reason."""

        def told() -> EdgeState | None:
            last = self.seen.last
            return last if last.state in states and reason in last.reason else None

        return self.wait(told, f'a state of {states} {reason!r}')

    def wait_for_server(self, server: str) -> None:
        """Wait until the session is open there."""
        self.wait(lambda: self.seen.last.server == server, f'a session with {server}')

    def go_home(self, server: str) -> None:
        """Begin episodes until the edge has returned to a server, and plays its actions."""
        # on a busy machine it is found later by the edge than by the test
        for _ in range(20):
            self.trigger('reset')
            self.wait_for_play(10)
            if self.seen.last.server == server:
                break
        self.wait_for_server(server)
        self.wait_for_play()

    def wait_for_topic(self, topic: str) -> None:
        """Wait until somebody publishes on a topic."""
        self.wait(lambda: self.node.count_publishers(topic), f'a publisher of {topic}')

    def wait_for_ticks(self, count: int = 20) -> None:
        """Wait until so many more control steps have passed."""
        until = self.seen.last.control_steps + count
        self.wait(lambda: self.seen.last.control_steps >= until, f'{count} control steps')

    def wait_for_rung(self, *rungs: int) -> ExecutedAction:
        """Wait until something that is executed from now on is on one of these rungs."""
        begin = len(self.seen.executed)

        def found() -> ExecutedAction | None:
            return next((a for a in self.seen.executed[begin:] if a.rung in rungs), None)

        return self.wait(found, f'a rung of {rungs}')

    def wait_for_cage_result(self, cage_result: int) -> ExecutedAction:
        """Wait until the cage says this of something that is executed from now on."""
        begin = len(self.seen.executed)

        def found() -> ExecutedAction | None:
            return next(
                (a for a in self.seen.executed[begin:] if a.cage_result == cage_result), None
            )

        return self.wait(found, f'cage_result {cage_result}')

    def trigger(self, service: str) -> str:
        """Call one of the edge's services; return what it says."""
        client = self._clients.get(service)
        if client is None:
            client = self.node.create_client(Trigger, f'{EDGE}/{service}')
            self._clients[service] = client
        response = ask_service(self.node, client, Trigger.Request())
        assert response.success
        return response.message

    def set(self, **values: object) -> None:
        """Change parameters of the edge, which must accept it."""
        client = self.node.create_client(SetParameters, f'{EDGE}/set_parameters')
        wanted = [Parameter(n, value=value).to_parameter_msg() for n, value in values.items()]
        answer = ask_service(self.node, client, SetParameters.Request(parameters=wanted))
        assert all(result.successful for result in answer.results), answer

    def offer(self, service: str) -> list[Trigger.Request]:
        """Create a service; return where its calls are gathered."""
        calls: list[Trigger.Request] = []

        def serve(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            calls.append(request)
            response.success = True
            return response

        self.node.create_service(Trigger, service, serve)
        return calls

    def judge(self, outcome: int, episode_id: str) -> None:
        """Say how an episode has ended."""
        self._outcomes.publish(EpisodeOutcome(episode_id=episode_id, outcome=outcome, text='seen'))

    def run(self, **goal: object) -> EpisodeRun:
        """Send a goal; it is accepted by the time this returns."""
        assert self._runs.wait_for_server(LIMIT_S)
        self._wait_until_found()
        feedback: list[RunEpisode.Feedback] = []
        ask = partial(
            self._runs.send_goal_async,
            RunEpisode.Goal(**goal),
            lambda message: feedback.append(message.feedback),
        )
        sent = in_executor(self.node, ask)
        handle = self.finished(sent, 'the goal is accepted')
        assert handle.accepted
        return EpisodeRun(self, handle, feedback)

    def _wait_until_found(self) -> None:
        """
        Wait until the edge has found its client. An edge that has not by then accepts a goal and
        cannot say so: its answer is lost.
        """
        # of no goal that there is
        call_service(self._results, RESULTS.Request(), LIMIT_S, idempotent=True)

    def finished(self, future: Any, what: str) -> Any:
        """Return what an answer of rclpy holds, once it came."""
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        assert done.wait(LIMIT_S), what
        return future.result()

    def end(self) -> None:
        self._runs.destroy()
        self.node.destroy_client(self._results)


class EpisodeRun:
    """One goal of RunEpisode."""

    def __init__(self, rig: EdgeRig, handle: Any, feedback: list[RunEpisode.Feedback]) -> None:
        self._rig, self._handle, self.feedback = rig, handle, feedback
        self._result = in_executor(rig.node, handle.get_result_async)

    @property
    def ended(self) -> bool:
        return self._result.done()

    def cancel(self) -> bool:
        """Return whether the edge agreed, as soon as it did."""
        cancelled = in_executor(self._rig.node, self._handle.cancel_goal_async)
        response = self._rig.finished(cancelled, 'the cancel is answered')
        return bool(response.goals_canceling)

    def result(self) -> tuple[int, RunEpisode.Result]:
        """Return how it ended, a status of action_msgs GoalStatus, and what is told of it."""
        answer = self._rig.finished(self._result, 'the run ends')
        return answer.status, answer.result


def without_gaps(executed: list[ExecutedAction]) -> bool:
    """Tell whether something was commanded at each control step, and all of it was seen."""
    ticks = [action.control_step for action in executed]
    return ticks == list(range(ticks[0], ticks[0] + len(ticks)))


def sessions(rig: EdgeRig) -> set[int]:
    return {action.session_epoch for action in rig.seen.played}
