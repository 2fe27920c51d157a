# SPDX-License-Identifier: Apache-2.0
"""A recorder says that it does not hear a robot whose edge controller is in the ROS graph."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.waiting import wait_until

from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.cli.verbs.record import print_summary
from lerobot_serve.tools.recorder import silence
from lerobot_serve.tools.recorder.node import RecorderNode
from lerobot_serve.tools.recorder.settings import RecorderSettings
from lerobot_serve_interfaces.msg import EdgeState

TOPIC = '/silent_arm/edge_controller/state'


@pytest.fixture
def runtime():
    runtime = NodeRuntime([])
    yield runtime
    runtime.close()


def test_a_robot_that_falls_silent_is_logged_and_counted(runtime, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(silence, 'SILENT_S', 2.0)
    recorder = RecorderNode(runtime, RecorderSettings(tmp_path / 'bag'))
    publisher = SteadyClockNode('silent_arm', context=runtime.context).create_publisher(
        EdgeState, TOPIC, qos.STATE
    )
    runtime.add(recorder)
    runtime.start()
    printed = SimpleNamespace(text='')

    def prints(text: str) -> bool:
        printed.text += capfd.readouterr().err
        return text in printed.text

    wait_until(lambda: publisher.get_subscription_count() > 0, 'the recorder subscribes')
    publisher.publish(EdgeState())
    wait_until(lambda: prints(f'{TOPIC} has not been heard for 2 s'), 'the silence is logged')
    assert recorder.unheard_s()[TOPIC] >= 2.0
    publisher.publish(EdgeState())
    wait_until(lambda: prints(f'{TOPIC} is heard again after'), 'its end is logged')
    runtime.end_threads()
    # a recording with a gap is none to rely on
    assert print_summary(recorder, 0) == 1
    assert f'{TOPIC} was not heard for' in capfd.readouterr().out
