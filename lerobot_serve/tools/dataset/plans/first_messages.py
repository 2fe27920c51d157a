# SPDX-License-Identifier: Apache-2.0
"""
Refuse a robot file that no message of a bag fits, before hours are converted. One thread.

A message here and there may be unusable; where all of the first ones of a topic are, the robot
file names joints, fields or types that the topic lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.dataset.plans.episodes import DatasetError
from lerobot_serve.tools.dataset.plans.robot_names import RecordedRobot, RobotInput

FIRST_MESSAGES = 20
# the input of the message, None for the command; raises Malformed
Decode = Callable[[RobotInput | None, BagMessage], None]


def check_first_messages(
    messages: Iterable[BagMessage], robot: RecordedRobot, decode: Decode, bag_name: str
) -> None:
    """
    Raise DatasetError if the first FIRST_MESSAGES messages of an input or of the command cannot be
    used. Topics without a message are left to the plan.
    """
    sources = {topic: one for one in robot.inputs for topic in one.topics}
    waiting: dict[str, RobotInput | None] = {**sources, robot.command_topic: None}
    failed = dict.fromkeys(waiting, 0)
    for message in messages:
        if message.topic not in waiting:
            continue
        try:
            decode(waiting[message.topic], message)
        except Malformed as error:
            failed[message.topic] += 1
            if failed[message.topic] >= FIRST_MESSAGES:
                raise DatasetError(
                    f'{bag_name}: the first {FIRST_MESSAGES} messages of {message.topic} do not '
                    f'fit the robot file: {error}'
                ) from error
        else:
            del waiting[message.topic]
            if not waiting:
                return
