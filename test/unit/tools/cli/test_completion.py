# SPDX-License-Identifier: Apache-2.0
"""What a shell is told when it asks how a command line may go on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lerobot_serve.tools.cli.main import verb_of, VERBS

CODE = 'from lerobot_serve.tools.cli.main import main; main()'


def completed(line: str, folder) -> list[str]:
    file = folder / 'told'
    environment = {
        **os.environ,
        '_ARGCOMPLETE': '1',
        '_ARGCOMPLETE_STDOUT_FILENAME': str(file),
        '_ARGCOMPLETE_IFS': '\n',
        'COMP_LINE': line,
        'COMP_POINT': str(len(line)),
    }
    command = [sys.executable, '-c', CODE]
    subprocess.run(command, env=environment, timeout=60, cwd=folder, check=True)
    return [word.strip() for word in file.read_text().split('\n') if word.strip()]


def test_verbs_and_options_are_completed(tmp_path):
    assert set(VERBS) <= set(completed('lerobot-serve ', tmp_path))
    assert completed('lerobot-serve pl', tmp_path) == ['plan']
    assert '--split' in completed('lerobot-serve route --s', tmp_path)
    (tmp_path / 'traces').mkdir()
    assert 'traces/' in completed('lerobot-serve stats tr', tmp_path)


@pytest.mark.parametrize(
    ('words', 'verb'),
    [([], 'none'), (['--help'], 'none'), (['stats', 'x'], 'stats'), (['-v', 'fly'], 'fly')],
)
def test_the_verb_of_a_command_line(words, verb):
    assert verb_of(words) == verb
