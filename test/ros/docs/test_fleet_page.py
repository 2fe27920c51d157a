# SPDX-License-Identifier: Apache-2.0
"""docs/fleet.md, word for word, with a PostgreSQL of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
import re
import signal
import subprocess

import psycopg
import pytest
from support.docs.walk import Walk
from support.paths import REPOSITORY
from support.postgres.server import postgres_server, PostgresServer
from support.waiting import wait_until

pytestmark = pytest.mark.slow
pytest.importorskip('torch', reason='the shipped policies run on torch')
START_S, END_S = 120.0, 90.0
STARTS = ('lerobot-serve up ', 'lerobot-serve router ')
DATABASE = ('createuser', 'createdb')


def page_parts() -> tuple[list[str], list[str]]:
    """Return the commands of the page and its files, in their order."""
    page = (REPOSITORY / 'docs' / 'fleet.md').read_text()
    blocks = re.findall(r'^```(\w*)\n(.*?)^```', page, re.DOTALL | re.MULTILINE)
    commands = [text for kind, text in blocks if not kind]
    files = [text for kind, text in blocks if kind == 'yaml']
    joined = [block.replace('\\\n', ' ') for block in commands]
    return [line for block in joined for line in block.splitlines()], files


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        with psycopg.connect(running.url('postgres'), autocommit=True) as connection:
            # what createuser and createdb do
            connection.execute('CREATE ROLE fleet LOGIN')
            connection.execute('CREATE DATABASE fleet OWNER fleet')
        yield running


class Terminals(Walk):
    """A person with a terminal for each process that stays."""

    def start(self, line: str) -> subprocess.Popen[bytes]:
        with (self._folder / f'{len(self.running)}.log').open('w') as log:
            self.running.append(self._start(line, log))
        return self.running[-1]

    def log_of(self, number: int) -> str:
        return (self._folder / f'{number}.log').read_text(errors='replace')


@pytest.fixture
def terminals(tmp_path, server, monkeypatch) -> Iterator[Terminals]:
    # a page names no port; libpq takes it from here
    monkeypatch.setenv('PGPORT', str(server.port))
    made = Terminals(tmp_path)
    made.running = []
    with ExitStack() as ends:
        ends.callback(lambda: [process.kill() for process in made.running])
        yield made
    for process in made.running:
        process.wait()


def test_the_page_is_walked_word_for_word(terminals, tmp_path):
    commands, (north, south) = page_parts()
    (tmp_path / 'north.yaml').write_text(north)
    (tmp_path / 'south.yaml').write_text(south)
    assert [line.split()[0] for line in commands[:2]] == list(DATABASE)
    printed = {}
    for line in commands[2:]:
        if line.startswith(STARTS):
            number = len(terminals.running)
            terminals.start(line)
            # the robot of the south moves before its own servers have loaded
            texts = ('CONNECTING -> STREAMING', 'policy_router]: healthy')
            said = texts if ' up ' in line else ('slot b (/v2/policy_server)',)
            wait_until(
                lambda said=said, n=number: all(text in terminals.log_of(n) for text in said),
                line,
                START_S,
            )
            continue
        status, printed[line] = terminals.types(line)
        assert status == 0, f'{line}\n{printed[line]}\n{terminals.log_of(0)[-3000:]}'
    # what was said to the first router is shown by the second
    shown = {line: text for line, text in printed.items() if 'rollout status' in line}
    texts = list(shown.values())
    assert '80 %' in texts[0] and '90 %' not in texts[1] and '80 %' in texts[1]
    assert 'serves this site, too' in terminals.log_of(1)
    for process in reversed(terminals.running):
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0, terminals.log_of(terminals.running.index(process))
