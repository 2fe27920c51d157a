# SPDX-License-Identifier: Apache-2.0
"""Real nodes are stopped, starved and refused in turn; `diagnose` names each cause first."""

from __future__ import annotations

import contextlib
from datetime import time as time_of_day
from pathlib import Path
import re
import signal
import subprocess
import time

import pytest
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from support.nodes.played_robot import STEP_S
from support.nodes.small_client import SmallClient
from support.processes.stopped_process import halt

from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve.tools.diagnosis.diagnose import diagnose, Diagnosis
from lerobot_serve.tools.diagnosis.report import diagnosis_report
from lerobot_serve.tools.output.text import TimeOfDay
from lerobot_serve_interfaces.msg import EdgeState

ROUTER, ROBOT = '/policy_router', 'robot_1'
# chunks of half a second, so that what is usual is known and no incident is in another's window
CALM_CHUNKS, AROUND_S, LIMIT_S = 4, 1.0, 60.0
STOPPED_S, STALE_S, CROWD = 2.5, 5.0, 14
INFERENCE_S = 0.05
# a third of the rate that its bound needs
STATE_BOUND_S, SLOW_DRIVER_S = 0.5, 1.5
EDGE = {
    'servers': f"['{ROUTER}']",
    'request_threshold_s': 0.3,
    'request_timeout_s': 2.0,
    'max_action_age_s': 2.0,
    'state_timeout_s': STATE_BOUND_S,
    'trace_images': 'none',
}


class Provoked:
    """One run of an edge, a router and a server; `incidents` are the causes with their times."""

    def __init__(self, rig, steering, folder: Path) -> None:
        self.rig, self.steering, self.folder = rig, steering, folder
        self.incidents: list[tuple[str, float, float]] = []
        self.server = rig.start_server(
            policy_kind='steered',
            policy_path=steering.path(chunk=15, seconds=INFERENCE_S),
            **self._trace('server'),
        )
        self.router = rig.fleet.start(
            'router', 'policy_router', slot_prod="['/policy_server']", **self._trace('router')
        )
        assert f'max_age_s: {STATE_BOUND_S}' in rig.robot
        self.edge = rig.start(**EDGE, **self._trace('edge'))
        rig.wait_for_play()

    def _trace(self, node: str) -> dict[str, object]:
        return {'trace_folder': self.folder / node}

    @contextlib.contextmanager
    def incident(self, cause: str):
        """Provoke a cause within the block, after some time in which all is well."""
        self.rig.wait_for_play(15 * CALM_CHUNKS)
        begin_s = time.time()
        yield
        self.rig.wait_for_play(15)
        self.incidents.append((cause, begin_s, time.time()))

    @contextlib.contextmanager
    def halted(self, process: subprocess.Popen):
        halt(process)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @property
    def stalls(self) -> int:
        return self.rig.seen.last.stalls

    def wait_for_stall(self, stalls: int) -> None:
        self.rig.wait(lambda: self.stalls > stalls, 'a stall', LIMIT_S)

    def set_quotas(self, *quotas: str) -> None:
        """Change the quotas of the router, which is running."""
        client = self.rig.node.create_client(SetParameters, f'{ROUTER}/set_parameters')
        given = Parameter('quotas', Parameter.Type.STRING_ARRAY, [*quotas]).to_parameter_msg()
        request = SetParameters.Request(parameters=[given])
        (result,) = call_service(client, request, LIMIT_S, idempotent=True).results
        assert result.successful, result.reason


def provoke_all(run: Provoked) -> None:
    """Let everything go wrong, one after the other."""
    for name, process in (('server_stopped', run.server), ('router_stopped', run.router)):
        with run.incident(name), run.halted(process):
            time.sleep(STOPPED_S)
    # first: an edge that stood still is without a state, too, and the log has one line for both
    with run.incident('stale_state'):
        run.rig.body.steps_per_message = int(SLOW_DRIVER_S / STEP_S)
        time.sleep(STALE_S)
        run.rig.body.steps_per_message = 1
    with run.incident('control_steps_missed'), run.halted(run.edge):
        time.sleep(STOPPED_S)
    with run.incident('quota_used_up'):
        before = run.stalls
        run.set_quotas('robot *: 0.2 requests/s')
        run.wait_for_stall(before)
        time.sleep(1.0)
        run.set_quotas()
    with run.incident('policy_slow'):
        before = run.stalls
        run.steering.turns.close_gate()
        run.wait_for_stall(before)
        time.sleep(1.0)
        run.steering.turns.open_gate()
    with run.incident('server_overloaded'):
        overload(run, run.stalls)


def overload(run: Provoked, before: int) -> None:
    """A crowd asks the server at once, again and again, until the robot has nothing to play."""
    crowd = [
        SmallClient(run.rig.node, '/policy_server', f'robot_{300 + n}', cameras=())
        for n in range(CROWD)
    ]
    for client in crowd:
        client.open(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while run.stalls == before and time.monotonic() < deadline:
        for client in crowd:
            client.request(episode_id=f'{client.ask.client_id}-episode')
        time.sleep(INFERENCE_S * CROWD)
    for client in crowd:
        client.close()


def check_log(log: str) -> None:
    """The log names the topic, the age and the bound of the slow driver, once."""
    held = [line for line in log.splitlines() if 'commands are held' in line]
    # a stopped edge is without a state for a moment, too
    assert 1 <= len(held) <= 3
    wanted = f'/joint_states is .* s old, {STATE_BOUND_S:g} s is allowed'
    assert any(re.search(wanted, line) for line in held), held
    assert 'control steps missed: ' in log


def explained(folder: Path, begin_s: float, end_s: float) -> Diagnosis:
    at = TimeOfDay(time_of_day(), begin_s, end_s - begin_s)
    return diagnose([folder], ROBOT, at=at, around_s=AROUND_S)


@pytest.mark.slow
def test_what_was_provoked_is_named_first(edge_rig, steering, tmp_path):
    run = Provoked(edge_rig, steering, tmp_path / 'traces')
    provoke_all(run)
    assert edge_rig.seen.last.state != EdgeState.DEAD
    for process in (run.edge, run.router, run.server):
        edge_rig.stop(process)
    check_log(edge_rig.log())
    wrong = []
    for cause, begin_s, end_s in run.incidents:
        found = explained(run.folder, begin_s, end_s)
        named = [result.rule.name for result in found.causes]
        if named[:1] != [cause]:
            wrong.append(f'{cause} is called {named}\n{diagnosis_report(found).as_text()}')
    assert not wrong, '\n\n'.join(wrong)
