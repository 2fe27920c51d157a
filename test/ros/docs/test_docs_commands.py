# SPDX-License-Identifier: Apache-2.0
"""
Every command of README.md and docs/*.md exists as it stands there: verbs with their options,
launch files with their arguments, parameters with their values, services and topics with types.
What is not ours stands in FOREIGN with the reason; what is shown as YAML is taken by its reader.
"""

from __future__ import annotations

import pytest
from support.docs.commands_rig import check_demo, CHECKS
from support.docs.docs_rig import blocks, Command, commands, REPOSITORY
import yaml

from lerobot_serve.edge.robot.file import parse
from lerobot_serve.files.load import load
from lerobot_serve.gateway.openpi.observation import OpenpiMappingFile
from lerobot_serve.learner.trainers.trainer_file import trainer_options
from lerobot_serve.parameters import build_parameters
from lerobot_serve.ros.process.private_domain import DOMAINS
from lerobot_serve.tools.dataset.episodes import parse_robot
from lerobot_serve.tools.fleet.plan import fleet_plan
from lerobot_serve.tools.reference.pages import NODES

# first words -> why nothing of it can be looked up here
FOREIGN = {
    'git clone': 'the address is not known yet',
    'cd': 'of the shell',
    'source': 'of the shell',
    'export': 'of the shell',
    'grep': 'of the system',
    'sort': 'of the system',
    'sed -i': 'of the system',
    'uniq': 'of the system',
    'sudo sysctl': 'of the system',
    'sudo modprobe': 'of the system',
    'curl': 'of the system; the paths are held by the tests of the endpoint',
    'rosdep install': 'of a ROS 2 installation',
    'colcon build': 'of a ROS 2 installation',
    'hf download': "of Hugging Face's package",
    'grpcurl': 'of its makers; the proto is held by a test of the door',
    'python -m lerobot.async_inference.robot_client': 'of LeRobot; see test_migration_page.py',
    'eval': 'of the shell',
    'register-python-argcomplete': 'of argcomplete',
    'rerun': 'of rerun-sdk',
    'zenohd': 'of Zenoh',
    'createuser': 'of PostgreSQL; test_fleet_page.py does the same',
    'createdb': 'of PostgreSQL; test_fleet_page.py does the same',
    'docker': 'of docker; test_containers_page.py holds what is ours',
    'kubectl': 'of Kubernetes; test_containers_page.py holds what is ours',
    'fastdds discovery': 'of Fast DDS',
    'ros2 bag': 'of a ROS 2 installation',
    'ros2 launch foxglove_bridge': 'of a ROS 2 installation',
}
FOUND = commands()


def ids(found: list[Command]) -> list[str]:
    return [str(each) for each in found]


def is_foreign(words: tuple[str, ...]) -> bool:
    return any(begins(words, first) for first in FOREIGN)


def begins(words: tuple[str, ...], first: str) -> bool:
    return words[: len(first.split())] == tuple(first.split())


@pytest.mark.parametrize('command', FOUND, ids=ids(FOUND))
def test_it_exists_as_it_stands_there(command):
    for name, value in command.variables:
        if name == 'ROS_DOMAIN_ID':
            assert int(value) in DOMAINS
            continue
        if name == 'PYTHON':
            assert value == 'python3.12'
            continue
        assert name == 'DEMO', f'{name} is not a variable that the Makefile knows'
        check_demo(value)
    if is_foreign(command.words):
        return
    first = ' '.join(command.words[:2] if command.words[0] == 'ros2' else command.words[:1])
    assert first in CHECKS, f'{command}: neither ours nor in FOREIGN'
    CHECKS[first](command.words)


def test_all_pages_were_looked_at():
    assert len(FOUND) > 100
    for name in FOREIGN:
        assert any(begins(c.words, name) for c in FOUND), f'{name} stands in no page any more'


FILES = [(page, yaml.safe_load(content)) for page, content in blocks('yaml')]


@pytest.mark.parametrize(('page', 'content'), FILES, ids=[page for page, _ in FILES])
def test_a_file_that_is_shown_is_taken(page, content):
    if '/**' in content:
        for node, given in content['/**'].items():
            build_parameters(NODES[node], given['ros__parameters'])
        return
    if content.keys() & {'servers', 'router', 'robots'}:
        fleet_plan(yaml.safe_dump(content), page, REPOSITORY / 'config')
        return
    if set(content) == {'gateway'}:
        # an addition to a fleet file
        fleet = yaml.safe_load((REPOSITORY / 'config/fleets/two_versions.yaml').read_text())
        fleet_plan(yaml.safe_dump(fleet | content), page, REPOSITORY / 'config')
        return
    if page.startswith('gateway'):
        load(OpenpiMappingFile, content, page)
        return
    if page == 'trainers.md':
        trainer_options(content, page)
        return
    if page == 'remote_policies.md':
        # test_remote_policy_page.py reads them as files of their kinds
        assert {'name', 'state_names', 'action_names'} <= content.keys()
        return
    if page == 'dataset.md':
        # a robot that only gives names to the topics of old bags
        assert parse_robot(yaml.safe_dump(content), page, '').description.fps == 30
        return
    files = (REPOSITORY / 'config' / 'robots').glob('*.yaml')
    if set(content) in ({'units'}, {'intervention'}):
        # an addition to a file
        arm = REPOSITORY / 'config' / 'robots' / 'so101.yaml'
        parse(yaml.safe_load(arm.read_text()) | content, page, arm.parent)
        return
    robots = [yaml.safe_load(file.read_text()) for file in files]
    assert any(content.items() <= robot.items() for robot in robots), (
        f'{page}: no robot of config/'
    )
