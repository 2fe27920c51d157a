# SPDX-License-Identifier: Apache-2.0
"""Each command of docs/runbook.md runs as it stands there and prints what is shown."""

from __future__ import annotations

import os
import re
import shlex

import pytest
from support.paths import REPOSITORY
from support.time_zone import time_zone

from lerobot_serve.tools.cli.installed_verbs import installed_verbs
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.diagnosis.diagnose import RULES
from lerobot_serve.tools.traces.reader import read_records

INCIDENT = REPOSITORY / 'docs' / 'incidents' / 'stutter'
PAGE = (REPOSITORY / 'docs' / 'runbook.md').read_text()
LEFT_OUT = '...'
BLOCK = re.compile(r'```console\n\$ (lerobot-serve .*)\n((?:.*\n)*?)```')
SHOWN = [(match[1], match[2].splitlines()) for match in BLOCK.finditer(PAGE)]
LIMIT_BYTES = 400_000


def arguments(command: str) -> list[str]:
    """Return what a shell in the repository would pass on."""
    given = []
    for word in shlex.split(command)[1:]:
        files = sorted(str(f.relative_to(REPOSITORY)) for f in REPOSITORY.glob(word))
        given += files if '*' in word else [word]
    return given


def is_shown(printed: list[str], shown: list[str]) -> bool:
    """Tell whether the lines are those that are shown, where `...` is any number of lines."""
    pattern = ''.join('(?:.*\n)*?' if s == LEFT_OUT else f'{re.escape(s)}\n' for s in shown)
    return bool(re.fullmatch(pattern, ''.join(f'{line}\n' for line in printed)))


@pytest.mark.parametrize(('command', 'shown'), SHOWN, ids=[command for command, _ in SHOWN])
def test_what_is_shown_is_what_is_printed(command, shown, capsys, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    # the machine of the page
    with time_zone('UTC'):
        assert main(arguments(command)) == 0
    printed = capsys.readouterr().out.replace(f'{os.getcwd()}/', '').splitlines()
    assert is_shown(printed, shown), '\n'.join(printed)


def test_every_command_of_ours_in_a_block_is_run():
    blocks = re.findall(r'^```.*\n((?:.*\n)*?)^```', PAGE, re.MULTILINE)
    named = [line for block in blocks for line in block.splitlines() if 'lerobot-serve ' in line]
    assert [line.removeprefix('$ ') for line in named] == [command for command, _ in SHOWN]
    assert len(SHOWN) >= 5


def test_verbs_and_options_that_are_named_exist(capsys):
    for verb in set(re.findall(r'`lerobot-serve (\w+)', PAGE)):
        assert verb in installed_verbs()
    with pytest.raises(SystemExit):
        main(['diagnose', '--help'])
    text = capsys.readouterr().out
    assert 'example: lerobot-serve diagnose traces/ --client robot_217 --at 14:03' in text
    for option in ('--at', '--around', '--brief', '--json'):
        assert option in text and f'`{option}' in PAGE


def test_every_verdict_is_listed_with_its_condition():
    section = PAGE.partition('## What each verdict needs')[2].partition('\n\n**Before**')[0]
    assert re.findall(r'^\* `(\w+)`: \w', section, re.MULTILINE) == [rule.name for rule in RULES]


def test_every_alert_has_an_entry():
    alerts = (REPOSITORY / 'config' / 'prometheus' / 'alerts.yaml').read_text()
    named = set(re.findall(r'alert: (\w+)', alerts))
    assert named - {'RobotStalls'} == set(re.findall(r'\*\*([A-Z]\w+[a-z][A-Z]\w+)\*\*', PAGE))
    assert '`RobotStalls`' in PAGE


def test_the_incident_is_small_and_holds_no_pictures():
    files = [file for file in INCIDENT.rglob('*') if file.is_file()]
    assert sum(file.stat().st_size for file in files) < LIMIT_BYTES
    roles = set()
    for file in INCIDENT.rglob('*.jsonl'):
        for _, record in read_records(file):
            assert record['kind'] != 'damaged' and 'images' not in record
            roles |= {record.get('role')} - {None}
    assert roles == {'edge', 'router', 'server'}
