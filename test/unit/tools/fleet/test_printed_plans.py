# SPDX-License-Identifier: Apache-2.0
"""Fleet files as plans, and plans as a launch file and as units of systemd."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import re
import shutil
import subprocess
import sys
import textwrap
from types import ModuleType

import pytest
from support.paths import REPOSITORY
import yaml

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import parameter_specs
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.cli.verbs import dashboard as verb
from lerobot_serve.tools.cli.verbs import record as record_verb
from lerobot_serve.tools.cli.verbs import up
from lerobot_serve.tools.fleet.plan import fleet_plan
from lerobot_serve.tools.fleet.printed_plans import launch_text, quoted, unit_files
from lerobot_serve.tools.fleet.process import as_yaml, FleetProcess, Stage
from lerobot_serve.tools.fleet.sections import Dashboard, Recording

FLEETS = REPOSITORY / 'config' / 'fleets'
AWKWARD = {'task': 'say "50 %" of $HOME\\', 'tags': ('a=b', "c=it's"), 'rtc': True}
EXECUTABLE = Path(sys.executable)


def plans() -> list[tuple[FleetProcess, ...]]:
    shipped = [
        fleet_plan(path.read_text(), path.name, path.parent)
        for path in sorted(FLEETS.glob('*.yaml'))
    ]
    awkward = FleetProcess('r', Stage.ROBOT, 'edge_controller', 'r', AWKWARD, 'warn')
    return [*shipped, (awkward,), (FleetProcess('s', Stage.SERVER, 'policy_server', '', {}),)]


each_plan = pytest.mark.parametrize('plan', plans(), ids=lambda plan: f'{len(plan)} processes')


@pytest.fixture
def launched(monkeypatch):
    """Return a function that reads a launch file: what each Node of it is given."""

    def read(text: str) -> list[dict[str, object]]:
        for name in ('launch', 'launch.actions', 'launch_ros', 'launch_ros.actions'):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        sys.modules['launch'].LaunchDescription = list
        sys.modules['launch.actions'].ExecuteProcess = lambda **given: given
        sys.modules['launch_ros.actions'].Node = lambda **given: given
        module: dict[str, object] = {}
        exec(compile(text, 'printed.launch.py', 'exec'), module)
        return module['generate_launch_description']()

    return read


@each_plan
def test_the_launch_file_starts_the_same(plan, launched):
    nodes = launched(launch_text(plan, 'fleet.yaml'))
    for node, process in zip(nodes, plan, strict=True):
        assert node['respawn'] is True
        if process.command:
            assert node['cmd'] == [process.executable, *process.arguments]
            continue
        assert node['executable'] == process.executable
        assert (['--ros-args'] if process.arguments else []) + node['ros_arguments'] == (
            process.arguments
        )
        assert node['package'] == 'lerobot_serve'


@pytest.mark.parametrize(
    'name',
    ['"""; raise SystemExit(7); """', "''" + "'", 'a\\', 'x\n"""\nraise SystemExit(7)', '{0}'],
)
def test_the_name_of_the_file_runs_nothing_in_the_launch_file(name, launched):
    assert launched(launch_text(plans()[-1], name))


@pytest.mark.parametrize(
    'text', ['a\u2028b', 'a\u2029b', 'a\x85b', 'a\nb', 'a\x00b', '\U000e0001', 'ü']
)
def test_a_text_is_one_line_of_yaml(text):
    written = as_yaml(text)
    assert written.isprintable()
    assert yaml.safe_load(written) == text


@pytest.mark.parametrize(('fleet', 'folder'), [('a\nb', '/x'), ('a', '/x\nExecStart=/bin/sh')])
def test_a_name_that_would_add_a_line_to_a_unit_is_refused(fleet, folder):
    with pytest.raises(UserError, match='control character'):
        unit_files(
            plans()[-1],
            fleet,
            environment={},
            folder=Path(folder),
            executable=lambda _: EXECUTABLE,
        )


def test_launch_itself_reads_it(tmp_path):
    pytest.importorskip(
        'launch_ros',
        reason='the launch packages are part of a ROS 2 installation; there are no wheels of them',
    )
    from launch.launch_description_sources.python_launch_file_utilities import (
        get_launch_description_from_python_launch_file as load,
    )

    for number, plan in enumerate(plans()):
        file = tmp_path / f'printed_{number}.launch.py'
        file.write_text(launch_text(plan, 'fleet.yaml'))
        assert len(load(str(file)).entities) == len(plan)


def units(plan: tuple[FleetProcess, ...]) -> dict[str, str]:
    return unit_files(
        plan,
        'lab 3',
        environment={
            'PATH': '/usr/bin:/100%',
            'SECRET': 'x',
            'ROS_HOME': '/data/ros',
            'ROS_DOMAIN_ID': '7',
        },
        folder=Path('/srv/lab'),
        executable=lambda name: EXECUTABLE,
    )


def parsed(text: str) -> dict[tuple[str, str], list[str]]:
    """Return the values of each key by section, as systemd reads them."""
    found: dict[tuple[str, str], list[str]] = {}
    section = ''
    for line in text.splitlines():
        if match := re.fullmatch(r'\[(\w+)\]', line):
            section = match[1]
        elif line:
            key, equals, value = line.partition('=')
            assert equals and section and re.fullmatch(r'[A-Za-z]+', key), line
            found.setdefault((section, key), []).append(value)
    return found


def words(command: str) -> list[str]:
    """Return the words of an ExecStart as systemd starts them."""
    assert re.fullmatch(r'"(?:[^"\\]|\\.)*"(?: "(?:[^"\\]|\\.)*")*', command)
    found = [json.loads(word) for word in re.findall(r'"(?:[^"\\]|\\.)*"', command)]
    return [word.replace('%%', '%').replace('$$', '$') for word in found]


@each_plan
def test_each_process_is_a_unit_with_its_command(plan):
    files = units(plan)
    target, *services = files
    assert parsed(files[target])['Unit', 'Wants'] == [' '.join(services)]
    for name, process in zip(services, plan, strict=True):
        unit = parsed(files[name])
        (command,) = unit['Service', 'ExecStart']
        assert words(command) == [str(EXECUTABLE), *process.arguments]
        assert unit['Service', 'KillSignal'] == ['SIGINT']
        assert unit['Unit', 'PartOf'] == unit['Install', 'WantedBy'] == [target]
        assert unit['Service', 'Environment'] == [
            *('"PATH=/usr/bin:/100%%"', '"ROS_DOMAIN_ID=7"', '"ROS_HOME=/data/ros"')
        ]


@each_plan
def test_systemd_restarts_a_node_that_stands_still_and_waits_for_no_report_of_a_verb(plan):
    _, *services = units(plan).values()
    for text, process in zip(services, plan, strict=True):
        unit = parsed(text)
        is_node = process.executable != 'lerobot-serve'
        assert unit['Service', 'Type'] == ['notify' if is_node else 'exec'], process.name
        assert (('Service', 'WatchdogSec') in unit) is is_node
        if process.executable == 'edge_controller':
            assert unit['Service', 'WatchdogSec'] == ['5']


def test_units_end_in_the_opposite_order_of_the_stages():
    (plan,) = [plan for plan in plans() if len(plan) == 7]
    files = units(plan)
    names = dict(zip((process.name for process in plan), list(files)[1:], strict=True))
    after = {
        name: set(parsed(files[unit])['Unit', 'After'][0].split()) & set(names.values())
        for name, unit in names.items()
    }
    assert after['dashboard'] == set()
    assert after['prod'] == {names['dashboard']}
    assert after['router'] == after['prod'] | {names['prod']}
    assert after['robot_1.sim'] == after['router'] | {names['router']}
    assert after['robot_1'] == after['robot_1.sim'] | {names['robot_1.sim'], names['robot_2.sim']}


@each_plan
def test_systemd_takes_the_units(plan, tmp_path):
    if not shutil.which('systemd-analyze'):
        pytest.skip('systemd is not installed; the other tests read the units themselves')
    for name, text in units(plan).items():
        (tmp_path / name).write_text(text.replace('/srv/lab', str(tmp_path)))
    done = verify(tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr


def test_systemd_refuses_a_broken_unit(tmp_path):
    if not shutil.which('systemd-analyze'):
        pytest.skip('systemd is not installed')
    (tmp_path / 'broken.service').write_text('[Service]\nExecStart=/nowhere/at/all\n')
    assert verify(tmp_path).returncode != 0


def verify(folder: Path) -> subprocess.CompletedProcess[str]:
    files = [str(path) for path in sorted(folder.iterdir())]
    return subprocess.run(
        ['systemd-analyze', 'verify', '--man=no', *files],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_words_of_a_unit():
    assert quoted('a "b" %h $HOME \\') == '"a \\"b\\" %%h $$HOME \\\\"'
    assert quoted('A=$HOME', is_command=False) == '"A=$HOME"'


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        ('30', '"30"'),
        ('', '""'),
        ('ü "q"', '"ü \\"q\\""'),
        (True, 'true'),
        (3, '3'),
        (2.5, '2.5'),
        ((), '[]'),
        (('a', '1'), '["a", "1"]'),
        (['a'], '["a"]'),
    ],
)
def test_a_value_as_rcl_reads_it(value, text):
    assert as_yaml(value) == text


GOOD = 'servers:\n  one: {policy_path: null:joints=6}\n'


def printed(file: Path, text: str) -> int:
    file.write_text(text)
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return up.main(parser.parse_args([str(file), '--print-file']))


def test_a_fleet_file_is_printed_as_it_is(tmp_path, capsys):
    assert printed(tmp_path / 'fleet.yaml', GOOD) == 0
    assert capsys.readouterr().out == GOOD


@pytest.mark.parametrize('wrong', ['serverz: {}\n', GOOD.replace('policy_path', 'polcy_path')])
def test_an_unknown_key_is_refused_as_up_refuses_it(tmp_path, capsys, wrong):
    with pytest.raises(UserError, match='did you mean'):
        printed(tmp_path / 'fleet.yaml', wrong)
    assert capsys.readouterr().out == ''


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
