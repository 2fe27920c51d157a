# SPDX-License-Identifier: Apache-2.0
"""QoS profiles and the Fast DDS profile: what is promised is what is in force."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from support.processes.log_lines import ours

from lerobot_serve.ros import qos
from lerobot_serve.ros.process import fastdds_profile
from lerobot_serve.ros.process.fastdds_profile import profile_variable, shipped_profile

PROFILES = {name: value for name, value in vars(qos).items() if isinstance(value, QoSProfile)} | {
    'OBSERVATION_OUT': qos.observation_writer(3.0)
}
REPORT = """
from lerobot_serve.ros.process.fastdds_profile import own_shared_memory_warning
from lerobot_serve.ros.process.node_runtime import NodeRuntime
import rclpy
runtime = NodeRuntime([])
runtime.add(rclpy.create_node('looks', context=runtime.context))
print(own_shared_memory_warning(rclpy.get_rmw_implementation_identifier()))
runtime.close()
"""
WAIT = """
import time
from lerobot_serve.shared_memory import segments as shared_memory
limit_s = time.monotonic() + 30.0
mapped = []
while len(mapped) < 2 and time.monotonic() < limit_s:
    mapped = shared_memory.MAPPED.findall(shared_memory.read_memory_map())
    time.sleep(0.01)
assert len(mapped) > 1, mapped
"""
# what Fast DDS 3 names in another way
NEW_NAMES = (
    ('heartbeatPeriod', 'heartbeat_period'),
    (
        '        <throughputController><bytesPerPeriod>0</bytesPerPeriod><periodMillisecs>1'
        '</periodMillisecs></throughputController>\n',
        '        <flow_controller_descriptor_list>\n'
        '          <flow_controller_descriptor><name>announcements</name>'
        '</flow_controller_descriptor>\n'
        '        </flow_controller_descriptor_list>\n',
    ),
)
SMALL = """<?xml version="1.0"?>
<dds xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles"><profiles>
<participant profile_name="small" is_default_profile="true"><rtps/></participant>
</profiles></dds>
"""


@pytest.mark.parametrize('name', PROFILES)
def test_no_profile_can_block_a_writer(name):
    assert PROFILES[name].history == HistoryPolicy.KEEP_LAST
    assert 1 <= PROFILES[name].depth <= qos.FLEET_DEPTH


def test_each_topic_has_the_reliability_it_needs():
    best_effort = {
        n for n, p in PROFILES.items() if p.reliability == ReliabilityPolicy.BEST_EFFORT
    }
    latched = {n for n, p in PROFILES.items() if p.durability == DurabilityPolicy.TRANSIENT_LOCAL}
    assert best_effort == {
        *('SENSOR', 'SHADOW_OBSERVATION', 'SHADOW_OBSERVATION_READER', 'SHADOW_REPLIES')
    }
    assert latched == {*('STATE', 'DECISIONS', 'SERVICE_EVENTS', 'RECORDED_EPISODES', 'VERSIONS')}
    assert PROFILES['OBSERVATION_OUT'].lifespan.nanoseconds == 3_000_000_000


def test_every_publisher_and_subscription_names_a_profile(repository):
    """A bare depth, like create_publisher(Kind, 'topic', 10), hides a decision."""
    for file in (repository / 'lerobot_serve').rglob('*.py'):
        for call in ast.walk(ast.parse(file.read_text())):
            name = getattr(getattr(call, 'func', None), 'attr', '')
            if name in ('create_publisher', 'create_subscription'):
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                numbers = [
                    a for a in given if isinstance(a, ast.Constant) and type(a.value) is int
                ]
                assert not numbers, f'{file}:{call.lineno}'


def report(script: str = REPORT, **variables: str) -> tuple[str, str]:
    """Return what a process with these variables complains about, and what it logs."""
    environment = {
        k: v for k, v in os.environ.items() if k not in fastdds_profile.PROFILE_VARIABLES
    }
    result = subprocess.run(
        [sys.executable, '-c', script],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip(), '\n'.join(ours(result.stderr))


def test_the_shipped_profile_is_in_force_by_default():
    assert report() == ('', '')


def test_the_profiles_of_both_versions_of_fast_dds_say_the_same(repository):
    older, newer = (
        (repository / 'config' / file).read_text() for file in fastdds_profile.PROFILES.values()
    )
    for old, new in NEW_NAMES:
        assert older.count(old) and old not in newer
        older = older.replace(old, new)
    assert newer == older


def test_a_smaller_segment_is_warned_about_with_the_remedy(tmp_path):
    file = tmp_path / 'small.xml'
    file.write_text(SMALL)
    complaint, log = report(**{fastdds_profile.profile_variable(): str(file)})
    assert 'KiB' in complaint
    assert 'segment_size to 8388608' in complaint
    assert complaint in log


def test_a_small_segment_is_seen_beside_a_large_one_of_another_node(node, tmp_path):
    """It maps what it reads from: the segment of the node of this test, which is large."""
    file = tmp_path / 'small.xml'
    file.write_text(SMALL)
    variables = {fastdds_profile.profile_variable(): str(file)}
    script = REPORT.replace('print(own', WAIT + 'print(own')
    complaint, _ = report(script, **variables)
    assert 'KiB' in complaint


def test_another_middleware_is_warned_about():
    assert 'rmw_cyclonedds_cpp' in fastdds_profile.shared_memory_warning(
        'rmw_cyclonedds_cpp', '', ()
    )


@pytest.mark.parametrize(
    ('line', 'size'),
    [
        ('7f0000000000-7f0000800000 rw-s 00000000 00:19 2 /dev/shm/fastrtps_0a1b', 8 << 20),
        ('7f0000000000-7f0000800000 rw-s 00000000 00:19 2 /dev/shm/fastdds_0a1b', 8 << 20),
        ('7f0000000000-7f0000800000 rw-s 00000000 00:19 2 /dev/shm/fastrtps_port7000', 0),
        ('', 0),
    ],
)
def test_segments_are_read_from_the_memory_map(line, size):
    held = {'/dev/shm/fastrtps_0a1b_el', '/dev/shm/fastdds_0a1b_el'}
    assert fastdds_profile.segment_bytes(line, held) == size
    # a segment of another participant, from which this one reads
    assert fastdds_profile.segment_bytes(line, {'/dev/shm/fastrtps_77_el'}) == 0


# what Fast DDS logs goes to the standard error; the standard output of a verb is for programs


CODE = "import rclpy; rclpy.init(); rclpy.create_node('logs').destroy_node(); print('made')"


@pytest.mark.skipif(
    os.environ.get('RMW_IMPLEMENTATION', 'rmw_fastrtps_cpp') != 'rmw_fastrtps_cpp',
    reason='the log is of Fast DDS',
)
def test_an_error_of_the_middleware_stays_out_of_the_standard_output(tmp_path):
    # a profile after the settings of the log that Fast DDS complains about
    profile = tmp_path / 'profile.xml'
    text = shipped_profile().read_text()
    profile.write_text(text.replace('</profiles>', '<nonsense/></profiles>'))
    environment = {**os.environ, profile_variable(): str(profile)}
    result = subprocess.run(
        [sys.executable, '-c', CODE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert 'nonsense' in result.stderr
    assert result.stdout == 'made\n'
