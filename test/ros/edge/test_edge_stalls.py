# SPDX-License-Identifier: Apache-2.0
"""A real edge controller that is stopped for a while, and a robot that is moved meanwhile."""

from __future__ import annotations

import signal
import time

import pytest
from support.nodes.edge_rig import EdgeRig
from support.nodes.person import DEVICE, Person
from support.nodes.played_robot import HOME, JOINTS
from support.processes.stopped_process import halt
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve_interfaces.msg import EdgeState

pytestmark = pytest.mark.long

MAX_STEP = 0.15
# by then what was sent before the stop has arrived; and how long it then stands still
SETTLE_S, STALL_S = 0.3, 1.5
# what the messages round
TINY = 1e-5


def moved_while_stopped(rig: EdgeRig, by: float) -> int:
    """
    Stop the edge, move the robot, let the edge go on; return how many commands came before that.
    """
    (edge,) = rig.processes
    halt(edge)
    time.sleep(SETTLE_S)
    rig.body.positions = {name: at + by for name, at in zip(JOINTS, HOME, strict=True)}
    time.sleep(STALL_S)
    before = len(rig.body.commands)
    edge.send_signal(signal.SIGCONT)
    return before


def assert_begins_there(rig: EdgeRig, before: int, by: float) -> int:
    """
    Wait for commands: the first is a step from where the robot is, each other from there. Return 1
    if a command from before the stop came first, which put the robot elsewhere: what is about to
    be sent when a process is stopped is sent when it continues.
    """
    commands = rig.body.commands
    rig.wait(lambda: len(commands) > before + 6, 'commands after the stop')
    old, *sent = map(positions, commands[before - 1 : before + 6])
    place = [at + by for at in HOME]
    is_late = is_a_step(old, sent[0]) and not is_a_step(place, sent[0])
    if is_late:
        place = sent.pop(0)
    for here in sent:
        assert is_a_step(place, here)
        place = here
    return is_late


def positions(command: JointTrajectory) -> list[float]:
    commanded = dict(zip(command.joint_names, command.points[-1].positions, strict=True))
    return [commanded[name] for name in JOINTS]


def is_a_step(place: list[float], here: list[float]) -> bool:
    return max(abs(a - b) for a, b in zip(here, place, strict=True)) <= MAX_STEP + TINY


def test_an_edge_that_was_stopped_begins_where_the_robot_was_put(edge_rig):
    edge_rig.robot += DEVICE
    edge_rig.start_server()
    person = Person(edge_rig)
    edge_rig.start()
    edge_rig.wait_for_play()
    late = assert_begins_there(edge_rig, moved_while_stopped(edge_rig, 0.9), 0.9)
    edge_rig.wait_for_play()
    assert edge_rig.seen.drops()['stood_still'] == 1

    edge_rig.trigger('pause')
    edge_rig.wait_for_rung(EdgeState.RUNG_HOLD)
    before = moved_while_stopped(edge_rig, -0.9)
    edge_rig.wait_for_ticks()
    assert len(edge_rig.body.commands) == before
    edge_rig.trigger('resume')
    late += assert_begins_there(edge_rig, before, -0.9)

    person.pose = HOME
    edge_rig.trigger('take_over')
    edge_rig.wait_for_rung(EdgeState.RUNG_PERSON)
    edge_rig.wait(
        lambda: list(edge_rig.body.positions.values()) == pytest.approx(HOME, abs=TINY),
        'the person holds it still',
    )
    late += assert_begins_there(edge_rig, moved_while_stopped(edge_rig, 0.9), 0.9)
    assert edge_rig.seen.executed[-1].rung == EdgeState.RUNG_PERSON
    assert late <= 1
