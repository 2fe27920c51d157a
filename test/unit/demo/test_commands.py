# SPDX-License-Identifier: Apache-2.0
"""A command that is printed is the command that runs, and the real parser takes it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
import shlex
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.paths import REPOSITORY

from lerobot_serve.demo.run import dashboard_words
from lerobot_serve.demo.tour import fleet_files
from lerobot_serve.demo.tour.act_order import SERVING
from lerobot_serve.demo.tour.link import join_text, KillCommand, VerbCommand
from lerobot_serve.tools.cli.installed_verbs import installed_verbs
from lerobot_serve.tools.cli.main import parser
from lerobot_serve.tools.cli.verbs import demo

TOUR = REPOSITORY / 'lerobot_serve' / 'demo' / 'tour'
ACTS = TOUR / 'acts.py', TOUR / 'learning_acts.py'


@cache
def whole_parser() -> Any:
    return parser(installed_verbs())


@given(st.lists(st.text(min_size=1), min_size=1), st.integers(0, 101))
def test_a_shell_reads_the_printed_line_as_the_words_that_run(words, domain):
    command = VerbCommand(tuple(words), domain)
    assert shlex.split(command.text) == [f'ROS_DOMAIN_ID={domain}', 'lerobot-serve', *words]


def test_a_reason_is_quoted():
    command = VerbCommand(('rollout', 'abort', '--yes', '--reason', "it's too fast"), 7)
    assert command.text == (
        """ROS_DOMAIN_ID=7 lerobot-serve rollout abort --yes --reason 'it'"'"'s too fast'"""
    )


def test_a_second_terminal_is_given_a_line_that_works():
    line = join_text(42).rpartition('then ')[2]
    assert line == 'ROS_DOMAIN_ID=42 lerobot-serve robots'
    assert KillCommand(31).text == 'kill -9 31'


def verbs_of_acts() -> list[list[str]]:
    """Return the words of each verb in the source of the acts; a name stands for its value."""
    values = {
        'context.plan': demo.PLANS[SERVING],
        'BROKEN_PLAN': '50:4,100',
        'str(policy)': '/abs/policies/v3',
        'folder': 'out/demo/folder',
        'store': 'out/demo/versions',
        'champion': 'reach@1',
        'name': 'robot_1',
    }
    found = []
    for node in (each for file in ACTS for each in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == 'context.run_verb':
            words = [ast.unparse(each) for each in node.args]
            found.append([values.get(word) or ast.literal_eval(word) for word in words])
    return found


DASHBOARD = list(dashboard_words(Path('out/demo')))


def test_the_acts_use_the_verbs_of_an_operator():
    used = [words[:2] for words in verbs_of_acts()]
    for words in (
        ['robots'],
        ['rollout', 'status'],
        ['rollout', 'start'],
        ['rollout', 'finish'],
        ['rollout', 'history'],
        ['versions', 'publish'],
        ['loop', 'history'],
    ):
        assert words in used


@pytest.mark.parametrize(
    'words', [*verbs_of_acts(), ['up', f'out/demo/{fleet_files.FLEET_FILE}'], DASHBOARD]
)
def test_the_parser_takes_each_command(words):
    options = whole_parser().parse_args(words)
    assert options.verb == words[0]
    # without a terminal a verb that asks would be refused
    asks = words[:2] in (['rollout', 'start'], ['rollout', 'finish'])
    assert not asks or options.yes
