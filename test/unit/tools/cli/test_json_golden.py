# SPDX-License-Identifier: Apache-2.0
"""What verbs that need no nodes print for programs, with their exit status, word for word."""

from __future__ import annotations

import pytest
from support.tools.audit_rig import drive

from lerobot_serve.tools.cli.main import main

pytestmark = pytest.mark.golden
STUTTER = 'docs/incidents/stutter'
COMMANDS = {
    'audit': [STUTTER],
    'audit_of_nothing': ['nowhere'],
    'diagnose': [STUTTER, '--client', 'robot_217'],
    'diagnose_nobody': [STUTTER, '--client', 'robot_2'],
    'plan': ['--robots', '20', '--inference-ms', '50'],
    'route': ['--split', '80', 'ep-1', 'ep-2'],
    'stats': [STUTTER],
    'versions_list': [],
    'versions_show': ['act@0123456789abcdef'],
}


def test_json_and_exit_status_are_those_that_were_agreed(
    golden, repository, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(repository)
    texts = {}
    drive(7, episodes=200).write(tmp_path / 'long')
    for name, words in {**COMMANDS, 'audit_long_run': [f'{tmp_path}/long']}.items():
        verb = name.split('_')[0]
        store = ['--store', str(tmp_path)] if verb == 'versions' else []
        below = name.split('_')[1:] if verb == 'versions' else []
        status = run([verb, *below, *words, *store, '--json'])
        out, err = capsys.readouterr()
        text = f'status {status}\n{out}{err}'
        texts[f'{name}.txt'] = text.replace(f'{repository}', '.').replace(f'{tmp_path}', 'STORE')
    golden.holds_folder('json', texts)


def run(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as error:
        return int(error.code or 0)
