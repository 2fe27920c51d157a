# SPDX-License-Identifier: Apache-2.0
"""What the command topic offers: as before to who asks for nothing, and its end to a driver."""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.qos import QoSProfile
from std_msgs.msg import Empty
from support.processes.in_executor import in_executor
from support.waiting import wait_until

from lerobot_serve.ros import qos


def test_a_driver_may_see_that_commands_have_ended_and_need_not(node):
    plain, watched, missed, misfits = [], [], [], []
    events = SubscriptionEventCallbacks(
        deadline=missed.append, incompatible_qos=misfits.append, use_default_callbacks=False
    )
    ask = QoSProfile(depth=1, deadline=Duration(seconds=0.2))

    def offer():
        node.create_subscription(Empty, 'commands', plain.append, 10)
        node.create_subscription(Empty, 'commands', watched.append, ask, event_callbacks=events)
        return node.create_publisher(Empty, 'commands', qos.command(1 / 30))

    publisher = in_executor(node, offer)
    wait_until(lambda: publisher.get_subscription_count() == 2, 'both are matched')
    publisher.publish(Empty())
    wait_until(lambda: plain and watched, 'both hear a command')
    wait_until(lambda: missed, 'the driver is notified of the silence')
    assert misfits == []
