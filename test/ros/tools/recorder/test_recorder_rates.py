# SPDX-License-Identifier: Apache-2.0
"""A recorder rests between its waits for messages, and keeps up with a fast topic."""

from __future__ import annotations

import time

import pytest
from rclpy.qos import QoSProfile
from std_msgs.msg import UInt32
from support.nodes.recorder_process import LIMIT_S, recorder
from support.tools.recorder_rig import messages
from support.waiting import wait_until

pytestmark = pytest.mark.long

TOPIC = '/fast'
BURST, BURSTS, PERIOD_S = 20, 200, 0.02


@pytest.mark.slow
def test_a_topic_that_is_faster_than_the_waits_is_recorded(node, tmp_path):
    publisher = node.create_publisher(UInt32, TOPIC, QoSProfile(depth=1000))
    bag = tmp_path / 'bag'
    with recorder(bag, '--topic', TOPIC) as process:
        wait_until(lambda: f'recording {TOPIC} ' in process.log, 'it is recorded', LIMIT_S)
        wait_until(publisher.get_subscription_count, 'they have met', LIMIT_S)
        for number in range(BURST * BURSTS):
            publisher.publish(UInt32(data=number))
            if number % BURST == BURST - 1:
                time.sleep(PERIOD_S)
        assert process.stop() == 0, process.log
    found = [int.from_bytes(each.data[4:8], 'little') for each in messages(bag)]
    assert found == sorted(set(found))
    # a message a wait would be a tenth of them; a machine that stands still may lose some
    assert len(found) > 0.9 * BURST * BURSTS
