# SPDX-License-Identifier: Apache-2.0
"""
What was decided for a robot survives the kill of its edge controller, at any moment after the
reply or the state that says so; and so does the lifting of it.

Each life of the process decides and lifts at random and is killed within 50 ms of the last
answer; the next one starts where it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
import contextlib
from random import Random
import threading
import time

import numpy as np
import pytest
from rclpy.client import Client
from std_srvs.srv import Trigger
from support.nodes.edge_rig import EDGE, EdgeRig
from support.nodes.fake_server import FakeServer
from support.nodes.person import DEVICE
from support.nodes.played_robot import HOME

from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve.shared_memory.damaged_ports import ReplacedPorts
from lerobot_serve.shared_memory.ports import PortGuard
from lerobot_serve_interfaces.msg import EdgeState
from lerobot_serve_interfaces.srv import OpenSession

# of three kills each
PASSES, KILLS_OF_EACH = 7, 20
WINDOW_S, CALL_S = 0.05, 60.0
PAUSE, TAKEOVER, LATCH, STOP, DEAD_STOP = 'pause', 'takeover', 'latch', 'stop', 'stop after DEAD'
# the services that decide and that lift, and the reply that says so
DECIDES = {PAUSE: ('pause', 'Paused'), TAKEOVER: ('take_over', 'Taken over')}
LIFTS = {
    PAUSE: ('resume', 'Resumed'),
    TAKEOVER: ('hand_back', 'Handed back'),
    LATCH: ('reset_cage', 'Cage latch cleared'),
    STOP: ('reset', 'Stop cleared'),
    DEAD_STOP: ('reset', 'Stop cleared'),
}
ROWS = 15
WILD = np.full((ROWS, 6), 50.0)
STILL = np.tile(HOME, (ROWS, 1))
SETTINGS = {
    LATCH: {'latch_after_trips': 10},
    STOP: {'fallback_ladder': ['ramp 0.5', 'stop_service'], 'stop_service': '/robot_1/stop'},
    DEAD_STOP: {'teardown': 'stop_service', 'stop_service': '/robot_1/stop'},
}


# of a decision that is in force and not yet on the disk
LATE = 'the disk has not responded yet'


class Server(FakeServer):
    """Makes a robot follow, latch, or lose its policy for good."""

    def __init__(self, rig: EdgeRig) -> None:
        self.chunk: np.ndarray | None = STILL
        super().__init__(rig.node, '/policy_server', EDGE, self._answer, chunk_size=ROWS)

    def _answer(self, _: Observation) -> np.ndarray | None:
        return self.chunk

    def behave(self, chunk: np.ndarray | None, *, accepts: bool = True) -> None:
        """Answer with these actions, or refuse the robot from now on."""
        self.chunk = chunk
        code = OpenSession.Response.OK if accepts else OpenSession.Response.ACTION_NAMES
        self._reply.update(accepted=accepts, code=code, reason='' if accepts else 'another robot')


class Lives:
    """One robot, whose edge controller is killed again and again."""

    def __init__(self, rig: EdgeRig, random: Random) -> None:
        self.rig, self.random, self.server = rig, random, Server(rig)
        # what stops this robot in the present lives
        self.halt = LATCH
        # in place, by all that was answered
        self.held: set[str] = set()
        self.touched: set[str] = set()
        self.kills: Counter[str] = Counter()
        self._clients: dict[str, Client] = {}
        rig.robot += DEVICE

    def begin(self) -> None:
        """Start the process; all that was in place is."""
        rig = self.rig
        self.server.behave(STILL)
        self._begun_ns = time.time_ns()
        rig.seen.states.clear()
        rig.body.commands.clear()
        self._process = rig.start(**SETTINGS[self.halt])
        state = rig.wait(self._first_state, 'a state of the new process')
        assert self._shown(state) == self.held, state.reason

    def _first_state(self) -> EdgeState | None:
        return next((each for each in self.rig.seen.states if self._is_new(each)), None)

    def _is_new(self, state: EdgeState) -> bool:
        return 10**9 * state.stamp.sec + state.stamp.nanosec > self._begun_ns

    def _shown(self, state: EdgeState) -> set[str]:
        reason = state.reason
        found = {
            PAUSE: state.paused,
            TAKEOVER: state.intervention != EdgeState.INTERVENTION_NONE,
            LATCH: 'Safety cage latched (before this start: latched after' in reason,
            STOP: 'Stop service called (before this start: person lost)' in reason,
            DEAD_STOP: 'Stop service called (before this start: given up)' in reason,
        }
        return {name for name, is_shown in found.items() if is_shown}

    def halt_robot(self) -> None:
        """Let it play, then stop it; the state says it, and that it is on the disk."""
        rig = self.rig
        assert not self.held
        rig.wait(lambda: rig.body.commands, 'it plays')
        if self.halt == LATCH:
            self.server.behave(WILD)
        elif self.halt == STOP:
            # a person who takes over and sends nothing
            self.decide(TAKEOVER)
        else:
            self.server.behave(None, accepts=False)
        text = 'Safety cage latched' if self.halt == LATCH else 'Stop service called'
        if self.halt == DEAD_STOP:
            rig.wait(lambda: rig.seen.last.state == EdgeState.DEAD, 'it is given up')
            rig.wait(lambda: rig.seen.last.rung == EdgeState.RUNG_STOP_SERVICE, 'it is stopped')
        else:
            rig.wait(lambda: text in rig.seen.last.reason, text)
        rig.wait(lambda: LATE not in rig.seen.last.reason, 'it is on the disk')
        self._note(self.halt, is_held=True)

    def decide(self, name: str) -> None:
        self._call(*DECIDES[name])
        self._note(name, is_held=True)

    def lift(self, name: str) -> None:
        self._call(*LIFTS[name])
        self._note(name, is_held=False)

    def _call(self, service: str, words: str) -> None:
        if service not in self._clients:
            client = self.rig.node.create_client(Trigger, f'{EDGE}/{service}')
            self._clients[service] = client
        assert self._clients[service].wait_for_service(CALL_S), service
        # sent again to a process that shared memory failed, and that starts again on its own
        reply = call_service(
            self._clients[service], Trigger.Request(), CALL_S, idempotent=True
        ).message
        assert reply.startswith(words)
        if LATE in reply:
            # a busy disk; the state says so until it is done
            self.rig.wait_for_ticks()
            self.rig.wait(lambda: LATE not in self.rig.seen.last.reason, 'it is on the disk')
        else:
            assert 'restart' not in reply

    def _note(self, name: str, *, is_held: bool) -> None:
        self.touched.add(name)
        (self.held.add if is_held else self.held.discard)(name)

    def toggle(self) -> None:
        """Decide and lift what services do, in a random order, up to a random one."""
        names = [PAUSE, TAKEOVER]
        self.random.shuffle(names)
        for name in names[: self.random.randint(0, 2)]:
            (self.lift if name in self.held else self.decide)(name)

    def lift_all(self) -> None:
        names = sorted(self.held)
        self.random.shuffle(names)
        for name in names:
            self.lift(name)

    def kill(self) -> None:
        """Kill the process at a random moment after the last answer."""
        time.sleep(self.random.uniform(0.0, WINDOW_S))
        self.rig.kill(self._process)
        self.kills.update(self.held | self.touched)
        self.touched.clear()

    def check_at_rest(self) -> None:
        """Nothing was commanded in this life, which began with something in place."""
        assert not self.rig.body.commands

    def pass_through(self, halt: str) -> None:
        """
        Three lives: in the first it plays, and is stopped by LATCH, STOP or DEAD_STOP; in the
        second it stays stopped; in the third all is lifted. The next one plays again.
        """
        self.halt = halt
        self.begin()
        self.halt_robot()
        self.toggle()
        self.kill()
        self.begin()
        self.toggle()
        self.check_at_rest()
        self.kill()
        self.begin()
        self.rig.wait_for_ticks(3)
        self.check_at_rest()
        self.lift_all()
        self.kill()


@pytest.fixture
def guarded_ports() -> Iterator[None]:
    """Guard this process as a node: it has the fake server, and killed ones send to it."""
    stop = threading.Event()

    def guard() -> None:
        ports = PortGuard()
        with contextlib.closing(ReplacedPorts()) as replaced:
            while not stop.wait(1.0):
                ports.check()
                replaced.check()

    thread = threading.Thread(target=guard, daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join(10.0)


@pytest.mark.slow
@pytest.mark.limit_s(600)
@pytest.mark.usefixtures('guarded_ports')
def test_a_kill_loses_nothing_that_was_answered(edge_rig):
    edge_rig.offer('/robot_1/stop')
    lives = Lives(edge_rig, Random(7))
    for halt in SETTINGS:
        for _ in range(PASSES):
            lives.pass_through(halt)
    assert min(lives.kills[each] for each in LIFTS) >= KILLS_OF_EACH, lives.kills
    # and it plays in the end
    lives.begin()
    edge_rig.wait(lambda: edge_rig.body.commands, 'it plays again')
