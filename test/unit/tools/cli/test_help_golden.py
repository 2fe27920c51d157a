# SPDX-License-Identifier: Apache-2.0
"""`--help` of each verb and of each verb below it, word for word; each verb is listed once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import sys

import pytest
from support.golden import Golden

from lerobot_serve.tools.cli.installed_verbs import (
    installed_verbs,
    listed_by_topic,
    OTHERS,
    OWN_PACKAGE,
    TOPICS,
)
from lerobot_serve.tools.cli.main import main, parser


def helps(of: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help of a parser, and of those below it."""
    yield of.format_help()
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from helps(below)


@pytest.mark.golden
@pytest.mark.skipif(sys.version_info >= (3, 13), reason='argparse of Python 3.13 has other words')
def test_the_help_of_each_verb_is_what_was_agreed(golden: Golden, monkeypatch):
    monkeypatch.setenv('COLUMNS', '80')
    verbs = {n: e for n, e in installed_verbs().items() if e.package == OWN_PACKAGE}
    top = parser(verbs)
    (listed,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    texts = {f'{name}.txt': '\n'.join(helps(listed.choices[name])) for name in sorted(verbs)}
    golden.holds_folder('help', {'lerobot-serve.txt': top.format_help(), **texts})


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
