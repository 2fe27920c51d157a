# SPDX-License-Identifier: Apache-2.0
"""`--help` of each verb and of each verb below it, word for word."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
import sys

import pytest
from support.golden import Golden

from lerobot_serve.tools.cli.installed_verbs import installed_verbs, OWN_PACKAGE
from lerobot_serve.tools.cli.main import parser


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
