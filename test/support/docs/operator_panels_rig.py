# SPDX-License-Identifier: Apache-2.0
"""Which topics, fields and services there are, told from our sources without ROS."""

from __future__ import annotations

import re
from typing import NamedTuple

from support.paths import REPOSITORY

ROOT = REPOSITORY
INTERFACES = ROOT / 'lerobot_serve_interfaces'

EDGE, ROUTER, SERVER = '/robot_1/edge_controller', '/policy_router', '/policy_server'
# topic or service: its type, and the words of the source that make it
TOPICS = {
    f'{EDGE}/state': ('EdgeState', 'edge/node.py', "EdgeState, '~/state'"),
    f'{EDGE}/executed_action': (
        'ExecutedAction',
        'edge/ros/robot_commands.py',
        'ExecutedAction,',
    ),
    f'{ROUTER}/state': (
        'RouterState',
        'router/ros/router_publishers.py',
        "RouterState, '~/state'",
    ),
    f'{ROUTER}/canary': (
        'CanaryState',
        'router/ros/router_publishers.py',
        "CanaryState, '~/canary'",
    ),
    f'{SERVER}/status': ('ServerStatus', 'server/node.py', "ServerStatus, '~/status'"),
    '/diagnostics': (
        'diagnostic_msgs/DiagnosticArray',
        'edge/node.py',
        "DiagnosticArray, '/diagnostics'",
    ),
    '/robot_1/camera/front/image_raw': (
        'sensor_msgs/Image',
        'sim/node.py',
        "Image, f'camera/{name}/image_raw'",
    ),
}
SERVICES = {
    f'{EDGE}/pause': ('std_srvs/Trigger', 'edge/node.py', "'pause': self._operator.pause,"),
    f'{EDGE}/resume': ('std_srvs/Trigger', 'edge/node.py', "'resume': self._operator.resume,"),
    f'{ROUTER}/control_slot': (
        'ControlSlot',
        'router/api/services.py',
        "(ControlSlot, 'control_slot'",
    ),
}
STANDARD = {'builtin_interfaces/Time': {'sec': 'int32', 'nanosec': 'uint32'}}
NUMBERS = {f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)} | {
    'bool',
    'float32',
    'float64',
}
WORDS = {'string'}
STEP = re.compile(r'\.(\w+)|\[(\d+|:)\]|\{(\w+)==(?:"([^"]*)"|(\d+))\}')
FIELD = re.compile(r'(?P<type>[\w/]+)(?:<=\d+)?(?P<list>\[[\d<=]*\])?\s+(?P<name>\w+)$')
CONSTANT = re.compile(r'^\w+ (\w+)=(\d+)$', re.MULTILINE)


class Field(NamedTuple):
    type: str
    is_list: bool


def fields_of(text: str) -> dict[str, Field]:
    """Return the fields of a message, or of one half of a service."""
    found = {}
    for line in text.splitlines():
        match = FIELD.match(line.partition('#')[0].strip())
        if match:
            found[match['name']] = Field(match['type'], bool(match['list']))
    return found


def message(name: str) -> dict[str, Field]:
    if name in STANDARD:
        return {field: Field(kind, False) for field, kind in STANDARD[name].items()}
    file = INTERFACES / 'msg' / f'{name}.msg'
    assert file.is_file(), f'there is no message {name}'
    return fields_of(file.read_text())


def field(path: str) -> Field:
    """Return what a path of Foxglove leads to."""
    topic, steps = re.fullmatch(r'([\w/]+)(.*)', path).groups()
    assert topic in TOPICS, f'{path}: there is no topic {topic}'
    at = Field(TOPICS[topic][0], False)
    end = 0
    for step in STEP.finditer(steps):
        assert step.start() == end, f'{path}: cannot be read at {steps[end:]}'
        end = step.end()
        name, index, key, text, number = step.groups()
        if index:
            assert at.is_list, f'{path}: [{index}] of what is not a list'
            at = Field(at.type, False)
        elif key:
            kind = message(at.type)[key].type
            assert kind in (WORDS if text is not None else NUMBERS), f'{path}: {key} is a {kind}'
        else:
            assert not at.is_list, f'{path}: .{name} of a list'
            at = message(at.type)[name]
        assert text is not None or number or index or name
    assert end == len(steps), f'{path}: cannot be read at {steps[end:]}'
    return at


def of_rqt_plot(topic: str) -> str:
    """Return a path of rqt_plot as Foxglove has it."""
    real = max((each for each in TOPICS if topic.startswith(f'{each}/')), key=len, default='')
    assert real, f'{topic}: there is no such topic'
    return real + topic[len(real) :].replace('/', '.')
