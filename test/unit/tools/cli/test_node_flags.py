# SPDX-License-Identifier: Apache-2.0
"""The flags of serve, edge and router: generated from the parameters, in every spelling."""

from __future__ import annotations

import argparse

import pytest

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import parameter_specs, ParameterError
from lerobot_serve.tools.cli.installed_verbs import installed_verbs
from lerobot_serve.tools.cli.main import main, parser
from lerobot_serve.tools.cli.node_flags import flag_of, given_values, spellings
from lerobot_serve.tools.cli.node_start import node_arguments
from lerobot_serve.tools.cli.verbs import edge, router, serve

VERBS = {'serve': serve, 'edge': edge, 'router': router}
verbs = pytest.mark.parametrize('verb', VERBS)


def options_of(verb: str, *words: str) -> argparse.Namespace:
    return parser(installed_verbs(), verb).parse_args([verb, *words])


def values(verb: str, *words: str) -> dict[str, object]:
    return given_values(options_of(verb, *words), VERBS[verb].NODE)


@verbs
def test_each_parameter_is_one_flag_in_the_help(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, '--help'])
    text = capsys.readouterr().out
    own = VERBS[verb].NODE
    listed = [line.split()[0] for line in text.splitlines() if line.startswith('  --')]
    for spec in parameter_specs(own.parameters):
        assert listed.count(flag_of(spec.name)) == 1, spec.name
    # the common ones first, in their order
    assert listed[: len(own.common)] == [flag_of(name) for name in own.common]
    assert text.index('common parameters:') < text.index('process:') < text.index('more param')


@verbs
def test_every_spelling_of_a_flag_is_that_parameter(verb):
    whole, own = parser(installed_verbs(), verb), VERBS[verb].NODE
    for spec in parameter_specs(own.parameters):
        value = spec.choices[0] if spec.choices else spec.default
        text = ','.join(value) if spec.kind is tuple else str(value).lower()
        expected = {spec.name: value if not isinstance(value, str) else value.lower()}
        for flag in spellings(spec.name):
            given = whole.parse_args([verb, f'{flag}={text}'])
            assert given_values(given, own) == expected


@pytest.mark.parametrize('flag', ['--policy-path', '--policy_path', '--policy.path'])
def test_separators_of_a_flag_are_the_same(flag):
    assert values('serve', flag, '/x') == {'policy_path': '/x'}


def test_a_parameter_of_a_group():
    for flag in ('--canary-minimum-episodes', '--canary.minimum_episodes'):
        assert values('router', flag, '7') == {'canary.minimum_episodes': 7}


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['--autostart'], True),
        (['--autostart', 'true'], True),
        (['--autostart=false'], False),
        (['--no-autostart'], False),
        (['--autostart', '--no-autostart'], False),
    ],
)
def test_a_bool(words, expected):
    assert values('serve', *words) == {'autostart': expected}


@pytest.mark.parametrize('flag', ['--no-pin-task', '--no_pin_task', '--no.pin.task'])
def test_the_negation_of_a_bool_of_two_words(flag):
    assert values('serve', flag) == {'pin_task': False}


@pytest.mark.parametrize(
    ('words', 'expected'),
    [
        (['--servers', '/a,/b'], ('/a', '/b')),
        (['--servers', '/a', '--servers', '/b, /c'], ('/a', '/b', '/c')),
        (['--servers', ''], ()),
    ],
)
def test_a_list_takes_commas_or_the_flag_several_times(words, expected):
    assert values('edge', *words) == {'servers': expected}


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--max-sessions', '0'], '--max-sessions must be in [1, 4096], got 0'),
        (['--max_sessions', 'many'], "--max-sessions must be an integer, got 'many'"),
        (['--slot', 'c'], "--slot must be one of prod, a, b, got 'c'"),
        (['--autostart', 'reach'], "--autostart must be a bool, got 'reach'; put other"),
        (['--trained-fps', 'nan'], '--trained-fps must be in [0, 1000], got nan'),
    ],
)
def test_a_wrong_value_is_refused_with_flag_and_bound(words, said):
    with pytest.raises(ParameterError) as refused:
        values('serve', *words)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['serve', '--polcy-path', 'x'], 'did you mean --policy-path?'),
        (['serve', '--polcy.path=x'], '--polcy.path is not a flag of this verb; did you mean --p'),
        (['router', '--canary_pln', '5'], 'did you mean --canary-plan?'),
        (['edge', '--qqqq'], 'there is no flag like it'),
        # no abbreviations: a later parameter would change their meaning
        (['serve', '--max-sess', '3'], 'did you mean --max-sessions?'),
        (['stats', 'x', '--htlm', 'y'], 'did you mean --html?'),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error and error.count('\n') == 1


def arguments(verb: str, *words: str) -> list[str]:
    return node_arguments(VERBS[verb].NODE, options_of(verb, *words))


def test_without_flags_nothing_is_given():
    assert arguments('router') == []


def test_name_namespace_and_log_level():
    words = ['--namespace', '/cell_2/', '--name', 'mine', '--log-level', 'debug']
    assert arguments('router', *words) == [
        *('--ros-args', '-r', '__node:=mine', '-r', '__ns:=/cell_2'),
        *('--log-level', 'cell_2.mine:=debug'),
    ]


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--namespace', 'a b'], '--namespace must be'),
        (['--name', 'a/b'], '--name must have letters'),
        (['--log-level', 'loud'], '--log-level must be one of debug'),
        (['--params-file', '/nowhere.yaml'], 'parameter file /nowhere.yaml: No such file'),
    ],
)
def test_a_wrong_option_of_the_process_is_refused(words, said):
    with pytest.raises(UserError, match=f'^{said}'):
        arguments('router', *words)


def test_values_that_contradict_are_refused_before_the_start():
    with pytest.raises(ParameterError, match='pin_task needs a default_task'):
        arguments('serve', '--pin-task')


FILE = """
/**:
  policy_router: {ros__parameters: {split_percent: 10, canary: {margin: 0.2}}}
/cell/policy_router: {ros__parameters: {split_percent: 20, session_idle_s: 30.0}}
/other/policy_router: {ros__parameters: {split_percent: 90}}
"""


def test_flags_win_over_the_file_and_the_entry_of_the_node_over_the_general_one(tmp_path):
    file = tmp_path / 'mine.yaml'
    file.write_text(FILE)
    words = ['--params-file', str(file), '--session-idle-s', '40', '--namespace', 'cell']
    assert arguments('router', *words) == [
        *('--ros-args', '-p', 'split_percent:=20', '-p', 'canary.margin:=0.2'),
        *('-p', 'session_idle_s:=40.0', '-r', '__ns:=/cell'),
    ]


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        ('policy_ruter: {ros__parameters: {split_percent: 1}}', 'no entry for /policy_router'),
        ('/**: {ros__parameters: {split_pct: 1}}', 'did you mean split_percent?'),
        ('a: [', 'mine.yaml: while parsing'),
    ],
)
def test_a_wrong_parameter_file_is_refused(tmp_path, content, said):
    file = tmp_path / 'mine.yaml'
    file.write_text(content)
    with pytest.raises((UserError, ParameterError)) as refused:
        arguments('router', '--params-file', str(file))
    assert said in str(refused.value)


def test_a_later_file_wins_and_parameters_of_every_node_pass(tmp_path):
    for name, percent in (('first', 1), ('second', 2)):
        text = f'/**: {{ros__parameters: {{use_sim_time: true, split_percent: {percent}}}}}'
        (tmp_path / name).write_text(text)
    words = [w for name in ('first', 'second') for w in ('--params-file', str(tmp_path / name))]
    assert arguments('router', *words) == [
        *('--ros-args', '-p', 'use_sim_time:=true', '-p', 'split_percent:=2'),
    ]


# the positional arguments


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'arm.yaml').write_text('')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ('policy', 'expected'),
    [
        ('mine', {'policy_path': '{here}/mine'}),
        ('lerobot:mine', {'policy_kind': 'lerobot', 'policy_path': '{here}/mine'}),
        ('lerobot:/models/v2', {'policy_kind': 'lerobot', 'policy_path': '/models/v2'}),
        (
            'null:joints=6,chunk=30,cameras=,fps=30',
            {'policy_kind': 'null', 'policy_path': 'joints=6,chunk=30,cameras=,fps=30'},
        ),
    ],
)
def test_a_policy_is_a_folder_or_a_kind_with_a_path(here, policy, expected):
    filled = {name: value.format(here=here) for name, value in expected.items()}
    assert serve.policy_values(policy) == filled


def test_a_shipped_policy_and_robot_are_named(here):
    assert serve.policy_values('reach')['policy_path'].endswith('config/policies/reach')
    assert edge.robot_values('so101')['robot_file'].endswith('config/robots/so101.yaml')
    assert edge.robot_values('arm.yaml') == {'robot_file': f'{here}/arm.yaml'}


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['serve', 'rech'], r"policy 'rech' is neither .* did you mean reach\?"),
        (['edge', 'so10'], r"robot file 'so10' is neither .* did you mean so10"),
        (['serve', 'mine', '--policy.path', 'x'], r'POLICY .* and --policy-path name one thing t'),
        (['edge', 'arm.yaml', '--robot-file=x'], r'ROBOT .* and --robot-file name one thing t'),
    ],
)
def test_a_wrong_policy_or_robot_or_one_named_twice_is_refused(here, words, said):
    with pytest.raises(UserError, match=said):
        arguments(*words)


def test_the_namespace_of_an_edge_is_its_client_id_unless_it_is_given():
    assert arguments('edge', '--client-id', 'robot_1')[-2:] == ['-r', '__ns:=/robot_1']
    words = ['--client-id', 'robot_1', '--namespace', 'cell']
    assert arguments('edge', *words)[-2:] == ['-r', '__ns:=/cell']
