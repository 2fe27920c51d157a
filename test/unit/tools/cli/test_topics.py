# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve --help` lists each verb once, under what it is for."""

from __future__ import annotations

import pytest

from lerobot_serve.tools.cli.installed_verbs import installed_verbs, OWN_PACKAGE
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.topics import listed_by_topic, OTHERS, TOPICS


def test_each_own_verb_has_one_topic():
    named = [name for names in TOPICS.values() for name in names]
    own = [name for name, entry in installed_verbs().items() if entry.package == OWN_PACKAGE]
    assert sorted(named) == sorted(own)


def test_the_help_has_the_topics_in_their_order(monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '80')
    with pytest.raises(SystemExit):
        main(['--help'])
    lines = capsys.readouterr().out.splitlines()
    places = [lines.index(f'{topic}:') for topic in TOPICS]
    assert places == sorted(places)
    verbs = [line for line in lines[places[0] :] if line[:2] == '  ' and line[2:3].strip()]
    begun = [line.split()[0] for line in verbs]
    assert begun == [name for names in TOPICS.values() for name in names]
    assert max(map(len, lines)) <= 80


def test_a_verb_of_another_package_and_a_long_name(monkeypatch):
    monkeypatch.setenv('COLUMNS', '50')
    found = dict(listed_by_topic({'up': 'start a fleet', 'fly_very_far_away': 'fly 100 % ' * 6}))
    assert found['start nodes'] == 'up          start a fleet'
    head, *rest = found[OTHERS].split('\n')
    assert head == 'fly_very_far_away' and len(rest) > 1
    assert all(line.startswith(' ' * 12) and len(line) <= 46 for line in rest)
