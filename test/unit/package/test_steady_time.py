# SPDX-License-Identifier: Apache-2.0
"""What bounds anything runs on the monotonic clock: read from the source of all nodes."""

from __future__ import annotations

import ast
import functools
import re

import pytest
from support.paths import REPOSITORY

PACKAGE = REPOSITORY / 'lerobot_serve'
FOLDERS = (PACKAGE, REPOSITORY / 'benchmarks')
FILES = {
    str(file.relative_to(PACKAGE if folder == PACKAGE else REPOSITORY)): file
    for folder in FOLDERS
    for file in sorted(folder.rglob('*.py'))
}
STEADY = 'ros/node/steady_clock.py'
# shares no code with the package, and has no timer
WITNESS = 'benchmarks/site/witness.py'
# file -> why it may read the system clock
STAMPS = {
    'shared_memory/segments.py': 'the age of a file',
    'versions/incoming.py': 'the age of a folder',
    'tools/cli/verbs/versions.py': 'when a version was published',
    'tools/learning/steps.py': 'when a version was published',
    'ros/contract/service_bytes.py': 'the stamp of a service event',
    'tools/bags/node.py': 'reception time, if the middleware has none',
    'tools/bags/zenoh_recording.py': 'reception time, which Zenoh has not',
    'benchmarks/harness/machine.py': 'when a measurement was made',
    'benchmarks/peers/lerobot.py': 'a field of the other library',
    'benchmarks/gateways/wire_requests.py': 'a field of the protocol of others',
    'benchmarks/fleet_growth.py': 'compared with the stamp of a message of the same machine',
    'benchmarks/trace_cost/tools.py': 'the header of a trace',
    'tools/dashboard/document/incidents.py': 'times of day for people',
    'policies/remote/lerobot_async.py': 'a field of the protocol of others',
    'tools/keys/certificates.py': 'the validity of certificates',
    'tools/cli/verbs/keys.py': 'whether a certificate has expired',
    'tools/operate/discovery/known_nodes.py': 'when a node was found, for other processes',
    'tools/operate/discovery/fleet_search.py': 'how long ago a missing robot was found',
    'tools/operate/discovery/graph_search.py': 'the age of a first state, which was latched',
    'tools/cli/rollout_steps.py': 'which records of traces are of the last hours',
    'tools/cli/verbs/record.py': 'the name of a folder',
    'tools/cli/verbs/gate.py': 'when a record was made, for people',
    'tools/loop/journal.py': 'when something happened, and which events are of the last hours',
    'demo/steady_time.py': 'the origin of times in a report',
    'tools/doctor/link.py': 'how long a certificate is still valid',
    'tools/doctor/machine.py': 'whether the system clock steps is what it measures',
    'router/context.py': 'texts for people, and what a store keeps for them',
    'trace/writing/open_trace.py': 'the header of a trace, and its name',
}
# file -> what it does with a node's ROS clock besides a stamp
ROS_CLOCK = {
    'edge/node.py': 'the optional bound on stamps of inputs compares them with it',
    STEADY: 'its own class has a method of this name, and it is compared with the steady clock',
    'ros/contract/server_links.py': 'rcl stamps service events with it',
}
WALL = {'time', 'time_ns', 'now', 'utcnow', 'today'}
# without one of these in its text a source is not parsed, which takes most of the time
MAY_READ = re.compile(r'from time import|CLOCK_REALTIME|\b(time|time_ns|now|utcnow|today)\(')


@functools.cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(source)))


@functools.cache
def calls(source: str) -> tuple[str, ...]:
    """Return what is called."""
    return tuple(written(node.func) for node in nodes(source) if isinstance(node, ast.Call))


def written(node: ast.expr) -> str:
    """Return a dotted name, without the arguments of calls in it; '' for anything else."""
    if isinstance(node, ast.Attribute):
        return f'{written(node.value)}.{node.attr}'
    if isinstance(node, ast.Call):
        return f'{written(node.func)}()'
    return node.id if isinstance(node, ast.Name) else ''


def reads_system_clock(source: str) -> bool:
    if not MAY_READ.search(source):
        return False
    for call in calls(source):
        owner, _, name = call.rpartition('.')
        is_wall = owner in ('time', 'datetime', 'datetime.datetime', 'date') and name in WALL
        if is_wall or 'CLOCK_REALTIME' in call:
            return True
    imported = (n for n in nodes(source) if isinstance(n, ast.ImportFrom))
    return any(n.module == 'time' and {a.name for a in n.names} & WALL for n in imported)


def uses_ros_clock(source: str) -> bool:
    """Return whether a node's clock is used for more than a stamp."""
    if 'get_clock' not in source:
        return False
    found = [call for call in calls(source) if call.endswith('get_clock')]
    stamps = [call for call in calls(source) if call.endswith('get_clock().now().to_msg')]
    return len(found) > len(stamps)


def builds_other_nodes(source: str) -> bool:
    """Return whether a node or an action server of rclpy itself is derived from or made."""
    if 'rclpy' not in source:
        return False
    theirs = set()
    for node in nodes(source):
        if isinstance(node, ast.ImportFrom) and (node.module or '').startswith('rclpy'):
            theirs |= {a.asname or a.name for a in node.names} & {'Node', 'ActionServer'}
    bases = {
        written(base)
        for node in nodes(source)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    made = {*calls(source), *bases}
    return bool(theirs & made or {'rclpy.create_node', 'rclpy.node.Node'} & made)


def test_only_stamps_read_the_system_clock():
    reading = {name for name, file in FILES.items() if reads_system_clock(file.read_text())}
    assert reading == set(STAMPS)


def test_the_ros_clock_is_for_stamps():
    using = {name for name, file in FILES.items() if uses_ros_clock(file.read_text())}
    assert using - set(ROS_CLOCK) == set()


def test_every_node_has_steady_timers():
    others = {name for name, file in FILES.items() if builds_other_nodes(file.read_text())}
    assert others == {STEADY, WITNESS}


@pytest.mark.parametrize(
    ('judge', 'source'),
    [
        (reads_system_clock, 'import time\nlate = time.time() > 3'),
        (reads_system_clock, 'from time import time\nlate = time() > 3'),
        (reads_system_clock, 'from datetime import datetime\nx = datetime.now()'),
        (uses_ros_clock, 'x = self.get_clock().now().nanoseconds'),
        (builds_other_nodes, 'from rclpy.node import Node\nclass A(Node): pass'),
        (builds_other_nodes, 'from rclpy.node import Node\nx = Node("x")'),
        (builds_other_nodes, 'from rclpy.action import ActionServer as A\nx = 1'),
        (builds_other_nodes, 'from rclpy.action import ActionServer\nx = ActionServer(1)'),
    ],
)
def test_what_is_forbidden_is_seen(judge, source):
    assert judge(source) is ('as A' not in source)


def test_stamps_are_allowed():
    assert not uses_ros_clock('x = self.get_clock().now().to_msg()')
