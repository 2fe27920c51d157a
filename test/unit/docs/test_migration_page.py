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
ISSUES = (
    *(1500, 1557, 2475, 2515, 2561, 2562, 2866),
    *(3047, 3048, 3560, 3861, 4122, 4223, 4468),
)
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
def test_each_issue_has_its_thread_and_something_to_type(number):
    (begin,) = re.findall(
        rf'\*\*\[#{number}\]\(https://github.com/huggingface/lerobot/(?:issues|pull)/{number}\)',
        PAGE,
    )
    rest = PAGE[PAGE.index(begin) :]
    # several that share an answer are followed by one block
    answer = rest.partition('\n## ')[0]
    block = re.search(r'^```\n(.*?)^```', answer, re.MULTILINE | re.DOTALL)
    assert block and block[1].strip()
