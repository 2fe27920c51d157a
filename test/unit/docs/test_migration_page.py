# SPDX-License-Identifier: Apache-2.0
"""docs/migrate_from_lerobot_async.md has every flag of LeRobot, and each issue."""

from __future__ import annotations

import ast
from importlib import util
from pathlib import Path
import re

import pytest
from support.paths import REPOSITORY

PAGE = (REPOSITORY / 'docs' / 'migrate_from_lerobot_async.md').read_text()
# issue -> a part of the command that shows the answer
ISSUES = {
    1500: 'curl -s localhost:9300/metrics',
    1557: "grep -ho 'QUEUE SIZE: [0-9]*' logs/robot_client_*.log",
    2475: 'lerobot-serve doctor config/policies/reach --robot config/robots/so101.yaml',
    2515: '--rtc',
    2561: 'lerobot-serve link',
    2562: '--rtc',
    2866: 'lerobot-serve up',
    3047: 'BENCH="pickles',
    3048: 'BENCH="pickles',
    3560: 'lerobot-serve link',
    3861: 'lerobot-serve doctor',
    4122: '--robot.joints=',
    4223: 'lerobot-serve audit edge_traces',
    4468: 'lerobot-serve link',
}
# of 0.6 alone, beside those of 0.4.4
LATER = {'rename_map'}
# shown with what follows, such as --robot.type
NESTED = {'robot'}


def fields_of(file: Path, name: str) -> set[str]:
    """Return the fields of a dataclass without importing its module, which imports torch."""
    (found,) = (
        each
        for each in ast.parse(file.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name == name
    )
    fields = {each.target.id for each in found.body if isinstance(each, ast.AnnAssign)}
    return fields | {'environment_dt'}


@pytest.fixture
def configs() -> Path:
    found = util.find_spec('lerobot')
    if found is None or not found.submodule_search_locations:
        pytest.skip('lerobot is not installed')
    return Path(found.submodule_search_locations[0]) / 'async_inference' / 'configs.py'


def named_in(table: str) -> set[str]:
    """Return the flags in the first cells of the tables with this head."""
    names = set()
    for part in PAGE.split(f'| LeRobot, `{table}` |')[1:]:
        rows = part.partition('\n\n')[0].splitlines()[2:]
        for row in rows:
            cell = row.split('|')[1]
            names |= set(re.findall(r'`(?:--)?(\w+)', cell))
    return names


@pytest.mark.parametrize(
    ('config', 'table'),
    [('PolicyServerConfig', 'policy_server'), ('RobotClientConfig', 'robot_client')],
)
def test_every_flag_of_lerobot_is_on_the_page(configs, config, table):
    fields = fields_of(configs, config)
    assert len(fields) > 4
    assert fields <= named_in(table)


def test_the_page_names_no_flag_that_lerobot_does_not_have(configs):
    known = fields_of(configs, 'PolicyServerConfig') | fields_of(configs, 'RobotClientConfig')
    named = named_in('policy_server') | named_in('robot_client')
    assert named <= known | LATER | NESTED


@pytest.mark.parametrize('number', ISSUES)
def test_each_issue_has_its_thread_and_the_command_that_shows_the_answer(number):
    (begin,) = re.findall(
        rf'\*\*\[#{number}\]\(https://github.com/huggingface/lerobot/(?:issues|pull)/{number}\)',
        PAGE,
    )
    rest = PAGE[PAGE.index(begin) :]
    # several that share an answer are followed by one block
    answer = rest.partition('\n## ')[0]
    block = re.search(r'^```\n(.*?)^```', answer, re.MULTILINE | re.DOTALL)
    assert block and ISSUES[number] in block[1]
