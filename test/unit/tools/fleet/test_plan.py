# SPDX-License-Identifier: Apache-2.0
"""Fleet files as plans: names, order, defaults of a router and its robots, and every mistake."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import textwrap

import pytest
from support.paths import REPOSITORY

from lerobot_serve.parameters import parameter_specs
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.cli.verbs import dashboard as verb
from lerobot_serve.tools.cli.verbs import record as record_verb
from lerobot_serve.tools.fleet.plan import fleet_plan, FleetProcess, Stage
from lerobot_serve.tools.fleet.sections import Dashboard, Recording

NULL = 'null:joints=6,chunk=30,cameras=,fps=30'
SHIPPED = sorted((REPOSITORY / 'config' / 'fleets').glob('*.yaml'))


def plan(text: str, folder: Path = Path('/nowhere')) -> dict[str, FleetProcess]:
    """Return the processes by name, in the order of their start."""
    planned = fleet_plan(textwrap.dedent(text), 'fleet.yaml', folder)
    return {process.name: process for process in planned}


def test_a_path_begins_at_the_folder_of_ros_of_the_user_or_of_the_file(monkeypatch):
    monkeypatch.setenv('ROS_HOME', '/data/ros')
    monkeypatch.setenv('HOME', '/home/kim')
    for given, path in (
        ('$ROS_HOME/traces', '/data/ros/traces'),
        ('~/traces', '/home/kim/traces'),
        ('../traces', '/fleets/traces'),
    ):
        text = f"servers: {{v1: {{policy: '{NULL}', trace_folder: {given}}}}}"
        assert plan(text, Path('/fleets/here'))['v1'].values['trace_folder'] == path


def test_paths_begin_at_the_folder_of_the_file(tmp_path):
    (tmp_path / 'models').mkdir()
    (tmp_path / 'arm.yaml').write_text('')
    planned = plan(
        """
        servers: {one: {policy: models, trace_folder: traces}, two: {policy: 'lerobot:models'}}
        robots: {left: {robot: arm.yaml}, right: {robot: so101, trace_folder: /var/traces}}
        """,
        tmp_path,
    )
    assert planned['one'].values['policy_path'] == f'{tmp_path}/models'
    assert planned['one'].values['trace_folder'] == f'{tmp_path}/traces'
    assert planned['two'].values['policy_kind'] == 'lerobot'
    assert planned['two'].values['policy_path'] == f'{tmp_path}/models'
    assert planned['left'].values['robot_file'] == f'{tmp_path}/arm.yaml'
    assert planned['right'].values['robot_file'].endswith('config/robots/so101.yaml')
    assert planned['right'].values['trace_folder'] == '/var/traces'


def test_a_fleet_of_200_robots_with_20_keys_each_is_read():
    keys = [f'{spec.name}: {json.dumps(spec.default)}' for spec in parameter_specs(SimParameters)]
    robot = f'{{simulated: true, simulation: {{{", ".join(keys[:20])}}}}}'
    text = 'robots:\n' + ''.join(f'  robot_{number}: {robot}\n' for number in range(200))
    assert len(plan(text)) == 400


@pytest.mark.parametrize('path', SHIPPED, ids=lambda path: path.name)
def test_the_shipped_fleets_are_plans(path):
    planned = fleet_plan(path.read_text(), path.name, path.parent)
    stages = {process.stage for process in planned}
    assert {Stage.DASHBOARD, Stage.SIMULATION, Stage.ROBOT} <= stages
    assert (Stage.SERVER in stages) is (path.stem != 'robot_alone')
    assert (Stage.ROUTER in stages) is (path.stem in ('two_robots', 'two_versions', 'loop'))
    assert ({Stage.LEARNER, Stage.LOOP} <= stages) is (path.stem == 'loop')


def test_the_robot_alone_asks_the_server_that_serve_starts():
    path = REPOSITORY / 'config' / 'fleets' / 'robot_alone.yaml'
    robot = fleet_plan(path.read_text(), path.name, path.parent)[-1]
    assert robot.values['servers'] == (
        FleetProcess('s', Stage.SERVER, 'policy_server', '', {}).node,
    )


def test_the_flags_of_a_dashboard_are_those_of_the_verb():
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    given = {f'--{key.replace("_", "-")}' for key in Dashboard.__struct_fields__}
    assert given == flags - {'-h', '--help', '--print-token'}


def test_the_keys_of_a_recorder_are_flags_of_the_verb():
    parser = argparse.ArgumentParser()
    record_verb.add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    keys = {*Recording.__struct_fields__} - {'folder'}
    assert {f'--{key.replace("_", "-")}' for key in keys} <= flags
