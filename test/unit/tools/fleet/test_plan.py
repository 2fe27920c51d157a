# SPDX-License-Identifier: Apache-2.0
"""Fleet files as plans: names, order, defaults of a router and its robots, and every mistake."""

from __future__ import annotations

import argparse
from pathlib import Path
import re
import textwrap

import pytest
from support.paths import REPOSITORY

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.verbs import dashboard as verb
from lerobot_serve.tools.cli.verbs import record as record_verb
from lerobot_serve.tools.fleet.fleet_file import read_fleet
from lerobot_serve.tools.fleet.plan import fleet_plan, FleetProcess, Stage
from lerobot_serve.tools.fleet.sections import dashboard, recorder

NULL = 'null:joints=6,chunk=30,cameras=,fps=30'
SHIPPED = sorted((REPOSITORY / 'config' / 'fleets').glob('*.yaml'))


def plan(text: str, folder: Path = Path('/nowhere')) -> dict[str, FleetProcess]:
    """Return the processes by name, in the order of their start."""
    file = read_fleet(textwrap.dedent(text), 'fleet.yaml')
    return {process.name: process for process in fleet_plan(file, folder)}


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


def test_servers_a_router_and_simulated_robots():
    planned = plan(f"""
        robots: {{count: 2, simulated: true, task: reach}}
        router: {{metrics_port: 9100}}
        servers:
          v1: {{policy: '{NULL}', slot: a, replicas: 2, metrics_port: 9300}}
          v2: {{policy: '{NULL}', slot: b, max_sessions: 3}}
    """)
    assert [(name, each.node) for name, each in planned.items()] == [
        ('v1_1', '/v1_1/policy_server'),
        ('v1_2', '/v1_2/policy_server'),
        ('v2', '/v2/policy_server'),
        ('router', '/policy_router'),
        ('robot_1.sim', '/robot_1/sim_robot'),
        ('robot_2.sim', '/robot_2/sim_robot'),
        ('robot_1', '/robot_1/edge_controller'),
        ('robot_2', '/robot_2/edge_controller'),
    ]
    assert planned['v1_2'].values == {
        'policy_kind': 'null',
        'policy_path': 'joints=6,chunk=30,cameras=,fps=30',
        'metrics_port': 9301,
        'slot': 'a',
    }
    assert planned['v2'].values['max_sessions'] == 3
    assert planned['router'].values == {
        'slot_a': ('/v1_1/policy_server', '/v1_2/policy_server'),
        'slot_b': ('/v2/policy_server',),
        'metrics_port': 9100,
    }
    assert planned['robot_2'].values == {'task': 'reach', 'servers': ('/policy_router',)}
    assert planned['robot_2.sim'].values == {
        'seed': 1,
        'outcome_topic': '/policy_router/outcome',
    }


def test_without_slots_all_servers_are_in_prod():
    planned = plan(f"servers: {{one: {{policy: '{NULL}'}}, two: {{policy: '{NULL}'}}}}\nrouter:")
    names = ('/one/policy_server', '/two/policy_server')
    assert planned['router'].values == {'slot_prod': names}


def test_a_shadow_is_beside_the_slots():
    planned = plan(f"""
        servers: {{live: {{policy: '{NULL}'}}, next: {{policy: '{NULL}', slot: shadow}}}}
        router: {{shadow_sample_percent: 10}}
    """)
    assert planned['next'].values['slot'] == 'prod'
    assert planned['router'].values == {
        'slot_prod': ('/live/policy_server',),
        'shadow_server': '/next/policy_server',
        'shadow_sample_percent': 10.0,
    }


def test_without_a_router_robots_know_every_server():
    planned = plan(f"""
        servers: {{one: {{policy: '{NULL}', replicas: 2}}}}
        robots: {{simulated: true}}
    """)
    assert planned['robot_1'].values['servers'] == ('/one_1/policy_server', '/one_2/policy_server')
    assert planned['robot_1.sim'].values == {'seed': 0}


def test_what_the_file_gives_wins(tmp_path):
    planned = plan(f"""
        servers: {{one: {{policy: '{NULL}', slot: a}}}}
        router: {{slot_b: [/far/policy_server], canary: {{minimum_episodes: 5}}}}
        robots:
          left:
            {{simulated: true, servers: [/other], simulation: {{seed: 9, image_width: 96}}}}
    """)
    assert planned['router'].values['slot_b'] == ('/far/policy_server',)
    assert planned['router'].values['canary.minimum_episodes'] == 5
    assert planned['left'].values == {'servers': ('/other',)}
    assert planned['left.sim'].values['seed'] == 9
    assert planned['left.sim'].values['image_width'] == 96


def test_a_namespace_is_before_all_names():
    planned = plan(f"""
        namespace: /cell_2
        log_level: warn
        servers: {{one: {{policy: '{NULL}'}}}}
        router:
        robots: {{simulated: true}}
    """)
    assert planned['one'].node == '/cell_2/one/policy_server'
    assert planned['router'].values['slot_prod'] == ('/cell_2/one/policy_server',)
    assert planned['robot_1'].values['servers'] == ('/cell_2/policy_router',)
    assert planned['robot_1.sim'].values['outcome_topic'] == '/cell_2/policy_router/outcome'
    assert planned['router'].arguments[-4:] == [
        *('-r', '__ns:=/cell_2', '--log-level', 'cell_2.policy_router:=warn'),
    ]


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


@pytest.mark.parametrize('path', SHIPPED, ids=lambda path: path.name)
def test_the_shipped_fleets_are_plans(path):
    planned = fleet_plan(read_fleet(path.read_text(), path.name), path.parent)
    stages = {process.stage for process in planned}
    assert {Stage.DASHBOARD, Stage.SIMULATION, Stage.ROBOT} <= stages
    assert (Stage.SERVER in stages) is (path.stem != 'robot_alone')
    assert (Stage.ROUTER in stages) is (path.stem in ('two_robots', 'two_versions', 'loop'))
    assert ({Stage.LEARNER, Stage.LOOP} <= stages) is (path.stem == 'loop')


def test_the_robot_alone_asks_the_server_that_serve_starts():
    path = REPOSITORY / 'config' / 'fleets' / 'robot_alone.yaml'
    robot = fleet_plan(read_fleet(path.read_text(), path.name), path.parent)[-1]
    assert robot.values['servers'] == (
        FleetProcess('s', Stage.SERVER, 'policy_server', '', {}).node,
    )


MISTAKES = {
    'servrs: {}': '1: servrs: is not known here; did you mean servers?',
    'servers:\n  v1:\n    polcy: x': '3: servers.v1.polcy: is not known here; did you mean pol',
    'servers:\n  v1: {policy: reach, count: 2}': '2: servers.v1.count: is not known here; did you '
    'mean replicas?',
    'servers:\n  v1:\n    policy: reach\n    max_sessions: 0': '4: servers.v1.max_sessions: '
    'max_sessions must be in [1, 4096], got 0',
    'servers: {v1: {policy: rech}}': "1: servers.v1.policy: policy 'rech' is neither there nor "
    'shipped with this package; did you mean reach?',
    'servers: {v1: {policy: 3}}': '1: servers.v1.policy: must be a text, got 3',
    'servers: {v1: }': '1: servers.v1: has no policy; add `policy: FOLDER`',
    'servers: {v1: {policy: reach, slot: c}}': '1: servers.v1.slot: must be one of prod, a, b, '
    "shadow, got 'c'",
    'servers: {v1: {policy: reach, replicas: 0}}': '1: servers.v1.replicas: must be an integer in '
    '[1, 64], got 0',
    'servers: {v1: {policy: reach, pin_task: true}}': '1: servers.v1: pin_task needs a default_ta',
    'servers: {a-b: {policy: reach}}': '1: servers.a-b: a name must have letters, digits and _',
    'servers: [v1]': "1: servers: must be a mapping of keys and values, got ['v1']",
    'servers: {v1: {policy: reach, slot: a}}\nrouter:': '1: servers: none has slot b; omit slot',
    'servers: {v1: {policy: reach, slot: a}, v2: {policy: reach}}\nrouter:': '1: servers: slot '
    'prod serves all episodes',
    'servers:\n  v1: {policy: reach}\n  v1: {policy: reach}': '2: servers.v1: is given twice, '
    'also in line 3',
    'servers:\n  robot_1: {policy: reach}\nrobots: {simulated: true}': ' robot_1 names 2 proces',
    'router: {canary: {pln: [5]}}': '1: router.canary.pln: is not known here; did you mean canary.'
    'plan?',
    'router: {split_percent: 140}': '1: router.split_percent: split_percent must be in [0, 100]',
    'robots:\n  left: {}': '2: robots.left: has no robot; add `robot: FILE.yaml`',
    'robots: {count: 0, simulated: true}': '1: robots.count: must be an integer in [1, 200]',
    'robots: {simulated: maybe}': "1: robots.simulated: must be true or false, got 'maybe'",
    'robots: {left: {simulated: true, robot: so101}}': '1: robots.left.robot: is of a real robot',
    'robots: {left: {robot: so101, simulation: {seed: 1}}}': '1: robots.left.simulation: needs',
    'robots: {left: {simulated: true, simulation: {sed: 1}}}': '1: robots.left.simulation.sed: is '
    'not known here; did you mean seed?',
    'robots: {left: {robot: so10}}': "1: robots.left.robot: robot file 'so10' is neither there",
    'robots: {left: {robot: [so101]}}': "1: robots.left.robot: must be a text, got ['so101']",
    'namespace: 3\nrobots: {simulated: true}': '1: namespace: must be a text, got 3',
    'robots: {left: {robot: so101, robot_file: x}}': '1: robots.left.robot: and robot_file name',
    'namespace: a b\nrobots: {simulated: true}': '1: namespace: namespace must be parts of',
    'log_level: loud\nrobots: {simulated: true}': '1: log_level: log_level must be one of',
    'namespace: cell': ' names no process; add servers, router or robots',
    'servers: {': '1: not valid YAML: ',
    '[]': ' must have servers, router or robots, got []',
    '': ' must have servers, router or robots, got None',
    '\x00': ' not valid YAML: ',
}


@pytest.mark.parametrize('text', MISTAKES)
def test_a_mistake_is_named_with_its_place(text):
    with pytest.raises(UserError) as refused:
        plan(text)
    assert str(refused.value).startswith(f'fleet.yaml:{MISTAKES[text]}')
    assert '\n' not in str(refused.value)


def test_a_gateway_reaches_the_router_or_the_only_server():
    servers = f"servers: {{a: {{policy: '{NULL}', slot: a}}, b: {{policy: '{NULL}', slot: b}}}}"
    planned = plan(f"""
        gateway: {{doors: [openpi], openpi: {{mapping: droid.yaml, port: 9000}}}}
        router: {{}}
        robots: {{count: 1, simulated: true}}
        {servers}
    """)
    assert [*planned][2:] == ['router', 'gateway', 'robot_1.sim', 'robot_1']
    assert planned['gateway'].node == '/gateway'
    assert planned['gateway'].values == {
        'doors': ('openpi',),
        'openpi.mapping': '/nowhere/droid.yaml',
        'openpi.port': 9000,
        'server': '/policy_router',
    }
    one = plan(f"gateway:\nservers: {{one: {{policy: '{NULL}'}}}}\n")
    assert one['gateway'].values == {'server': '/one/policy_server'}
    with pytest.raises(UserError, match='gateway: reaches one server, and the file has 2'):
        plan(f'gateway:\n{servers}\n')
    with pytest.raises(UserError, match='doors does not name groot'):
        plan(f'gateway: {{groot: {{port: 1}}}}\n{servers}\nrouter: {{}}\n')


def test_a_dashboard_is_the_verb_with_its_flags():
    planned = plan(f"""
        dashboard:
          port: 8400
          host_name: [gpu-1, gpu-1.example]
          trace_folder: traces
          tls_certificate: /etc/gpu.pem
          tls_key: /etc/gpu.key
        servers: {{one: {{policy: '{NULL}'}}}}
    """)
    assert list(planned) == ['dashboard', 'one']
    assert planned['dashboard'].executable == 'lerobot-serve'
    assert planned['dashboard'].arguments == [
        *('dashboard', '--port', '8400', '--host-name', 'gpu-1', 'gpu-1.example'),
        *('--trace-folder', '/nowhere/traces'),
        *('--tls-certificate', '/etc/gpu.pem', '--tls-key', '/etc/gpu.key'),
    ]


def test_a_dashboard_reads_the_folders_that_the_fleet_writes():
    servers = f"{{one: {{policy: '{NULL}', trace_folder: of_server, capture_folder: captures}}}}"
    rest = 'robots: {count: 1, simulated: true, trace_folder: of_robot}'
    text = f'dashboard: {{port: 0}}\nservers: {servers}\n{rest}\n'
    words = [*('dashboard', '--port', '0'), *('--trace-folder', '/nowhere/of_robot')]
    captures = ['--capture-folder', '/nowhere/captures']
    assert plan(text)['dashboard'].arguments == [*words, *captures]
    # the router records the decisions
    routed = plan(f'{text}router: {{trace_folder: of_router}}\n')['dashboard'].arguments
    assert routed == [*words[:-1], '/nowhere/of_router', *captures]
    own = plan(text.replace('port: 0', 'trace_folder: own'))['dashboard'].arguments
    assert own == ['dashboard', '--trace-folder', '/nowhere/own', *captures]


def test_the_flags_of_a_dashboard_are_those_of_the_verb():
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    given = {f'--{key.replace("_", "-")}' for key in dashboard.KEYS}
    assert given == flags - {'-h', '--help', '--print-token'}


@pytest.mark.parametrize(
    ('given', 'said'),
    [
        ('{prt: 1}', 'fleet.yaml:1: dashboard.prt: is not known here; did you mean port?'),
        ('{port: 70000}', 'dashboard.port: must be an integer in'),
        ('{address: 5}', 'dashboard.address: must be a text, got 5'),
        ('{tls_key: a}', 'tls_certificate and tls_key belong together'),
        ('7', 'dashboard: must be a mapping'),
    ],
)
def test_mistakes_of_a_dashboard(given, said):
    with pytest.raises(UserError, match=re.escape(said)):
        plan(f"dashboard: {given}\nservers: {{one: {{policy: '{NULL}'}}}}")


def test_a_recorder_is_the_verb_with_its_flags_and_ends_after_the_robots():
    planned = plan("""
        namespace: lab
        record:
          folder: bags
          strategy: sentry
          robot: robot_1
          slice_time: 600
          keep_slices: 3
        robots: {count: 1, simulated: true, servers: [/policy_server]}
    """)
    assert planned['record'].arguments == [
        *('record', '/nowhere/bags', '--strategy=sentry', '--robot=robot_1'),
        *('--slice-time=600', '--keep-slices=3', '--namespace=lab'),
    ]
    assert planned['record'].stage < Stage.SIMULATION < planned['robot_1'].stage
    short = plan('record: {folder: /b}\nrobots: {count: 1, simulated: true, servers: [/p]}')
    assert short['record'].arguments == ['record', '/b', '--strategy=episodic']


@pytest.mark.parametrize(
    ('given', 'said'),
    [
        ('{}', 'record: has no folder; add `folder: bags`'),
        ('{foldr: a}', 'record.foldr: is not known here; did you mean folder?'),
        ('{folder: a, strategy: all}', 'record.strategy: must be one of episodic, sentry'),
        ('{folder: a, strategy: continuous}', 'record.strategy: must be one of episodic'),
        ('{folder: a, before: 3}', '--before has no effect on strategy episodic'),
        ('{folder: a, gone_after: 0}', '--gone-after must be in [1, 3600]'),
        ('{folder: a, gone_after: x}', "record.gone_after: must be a number, got 'x'"),
        ('{folder: a, strategy: sentry, keep_slices: 1.5}', 'must be an integer'),
    ],
)
def test_mistakes_of_a_recorder(given, said):
    with pytest.raises(UserError, match=re.escape(said)):
        plan(f"record: {given}\nservers: {{one: {{policy: '{NULL}'}}}}")


def test_a_recorder_alone_is_no_fleet():
    with pytest.raises(UserError, match='names no process; add servers, router or robots'):
        plan('record: {folder: a}')


def test_the_keys_of_a_recorder_are_flags_of_the_verb():
    parser = argparse.ArgumentParser()
    record_verb.add_arguments(parser)
    flags = {option for action in parser._actions for option in action.option_strings}
    keys = {*recorder.NUMBERS, *recorder.TEXTS}
    assert {f'--{key.replace("_", "-")}' for key in keys} <= flags


def test_a_dashboard_alone_is_no_fleet():
    with pytest.raises(UserError, match='names no process; add servers, router or robots'):
        plan('dashboard: {port: 0}')


def test_a_policy_on_a_robot_is_tried_last_over_the_link_within_the_robot():
    planned = plan(f"""
        namespace: cell
        servers: {{v1: {{policy: '{NULL}'}}}}
        router:
        robots:
          left: {{robot: so101, local: {{policy: '{NULL}', cpu_threads: 1}}}}
          right: {{robot: so101, servers: [/other], local: {{policy: '{NULL}'}}}}
          alone: {{robot: so101}}
    """)
    assert planned['left.local'].node == '/cell/left/policy_server'
    assert planned['left.local'].stage is Stage.SERVER
    assert planned['left.local'].values['cpu_threads'] == 1
    assert planned['left'].values['servers'] == (
        '/cell/policy_router',
        'ros:/cell/left/policy_server',
    )
    assert planned['right'].values['servers'] == ('/other', 'ros:/cell/right/policy_server')
    assert planned['alone'].values['servers'] == ('/cell/policy_router',)


@pytest.mark.parametrize(
    ('local', 'error'),
    [
        ('{}', 'has no policy; add `policy: FOLDER`'),
        ('{policy: none_such}', 'neither there nor shipped'),
        ('{policy: reach, replicas: 2}', 'replicas'),
        ('{policy: reach, slot: a}', 'local.slot: is of servers of a router; remove it'),
        ('7', 'must be'),
    ],
)
def test_a_policy_on_a_robot_that_is_none_is_refused(local: str, error: str):
    with pytest.raises(UserError, match=error):
        plan(f'robots: {{left: {{robot: so101, local: {local}}}}}')


def test_the_policies_of_several_robots_have_ports_of_their_own():
    planned = plan(f"""
        robots: {{count: 3, simulated: true, local: {{policy: '{NULL}', metrics_port: 9500}}}}
    """)
    ports = [planned[f'robot_{n}.local'].values['metrics_port'] for n in (1, 2, 3)]
    assert ports == [9500, 9501, 9502]
