# SPDX-License-Identifier: Apache-2.0
"""The command lines of record and replay."""

from __future__ import annotations

import argparse

import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.audit.command_limits import read_bounds
from lerobot_serve.tools.cli.arguments import server_parameters
from lerobot_serve.tools.cli.verbs import audit, record, replay
from lerobot_serve.tools.replay.sources import ReplayError


def parsed(module: object, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(words)


def test_parameters_of_the_server():
    more = ('state_names=a, b', 'pin_task=true', 'default_task=x=y', 'cpu_threads=2')
    built = server_parameters('null', 'p', 'cuda:0', more)
    assert isinstance(built, ServerParameters)
    assert (built.policy_kind, built.policy_path, built.device) == ('null', 'p', 'cuda:0')
    assert built.state_names == ('a', 'b')
    assert (built.pin_task, built.default_task, built.cpu_threads) == (True, 'x=y', 2)


@pytest.mark.parametrize(
    ('word', 'text'),
    [
        ('nonsense=1', 'NAME=VALUE of a policy_server'),
        ('cpu_threads', 'NAME=VALUE of a policy_server'),
        ('cpu_threads=many', 'cpu_threads must be'),
        ('pin_task=perhaps', 'pin_task must be'),
    ],
)
def test_parameters_that_are_none(word, text):
    with pytest.raises(ParameterError, match=text):
        server_parameters('builtin', '', 'cpu', [word])


@pytest.mark.parametrize(
    ('words', 'text'),
    [
        (('x', '--tolerance', '-1'), '--tolerance'),
        (('x', '--tolerance', 'nan'), '--tolerance'),
        (('x', '--execution-horizon', '-1'), '--execution-horizon'),
        (('missing.mcap',), 'missing.mcap does not exist'),
    ],
)
def test_mistakes_of_replay(words, text):
    with pytest.raises((ParameterError, ReplayError), match=text):
        replay.main(parsed(replay, *words))


@pytest.mark.parametrize(
    ('words', 'text'),
    [
        (('--max-size', '-1'), '--max-size'),
        (('--duration', 'nan'), '--duration'),
        (('--topic', 'state'), 'full names such as /state'),
        (('--slice-size', '3'), '--slice-size has no effect on strategy continuous'),
        (('--strategy', 'sentry', '--before', '3'), '--before has no effect on strategy sentry'),
        (('--strategy', 'episodic', '--topic', '/a'), '--topic has no effect on'),
        (('--strategy', 'highlight', '--after', '0'), r'--after must be in \[0.1, 600\]'),
    ],
)
def test_mistakes_of_record(words, text):
    with pytest.raises(ParameterError, match=text):
        record.main(parsed(record, *words))


@pytest.mark.parametrize('words', [('x', '--max-action-age', '0'), ('x', '--max-action-age', '1')])
def test_mistakes_of_audit(words):
    with pytest.raises(ParameterError, match='--max-action-age'):
        audit.main(parsed(audit, *words))


def test_limits_of_a_robot_file(repository):
    assert read_bounds(audit.limits_of(repository / 'config' / 'robots' / 'sim_arm.yaml'))
