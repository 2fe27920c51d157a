# SPDX-License-Identifier: Apache-2.0
"""What a shell is told when it asks how a command line may go on."""

from __future__ import annotations

import pytest
from support.tools.completion import completed

from lerobot_serve.tools.cli.installed_verbs import installed_verbs
from lerobot_serve.tools.cli.main import verb_of


def test_verbs_and_options_are_completed(tmp_path):
    assert set(installed_verbs()) <= set(completed('lerobot-serve ', tmp_path))
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
