# SPDX-License-Identifier: Apache-2.0
"""docs/python_client.md as the notebook that it is: its cells in order, and what they print."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
import doctest
import io
from pathlib import Path
import re
from typing import Any

import pytest
from support.paths import REPOSITORY

PAGE = REPOSITORY / 'docs' / 'python_client.md'
FENCE = re.compile(r'^```(\w*)\n(.*?)^```', re.MULTILINE | re.DOTALL)
SHOWN_ENDPOINT, SHOWN_GATEWAY = 'tcp/127.0.0.1:7447', 'grpc://127.0.0.1:8703'
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Cell:
    """One block of code, and the text that the page says it prints; None for nothing shown."""

    line: int
    code: str
    printed: str | None


def cells() -> list[Cell]:
    page = PAGE.read_text()
    found = list(FENCE.finditer(page))
    made = []
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block[1] != 'python':
            continue
        follows = after is not None and after[1] == 'text'
        # nothing but the next block belongs to a cell
        is_next = follows and not page[block.end() : after.start()].strip()
        line = page.count('\n', 0, block.start()) + 1
        made.append(Cell(line, block[2], after[2] if is_next else None))
    return made


@pytest.fixture
def link() -> str:
    """The server listens on Zenoh."""
    return 'zenoh'


def run(cell: Cell, names: dict[str, Any], endpoint: str, gateway: str) -> str:
    """Run a cell; return what it prints."""
    shown = cell.code.replace(SHOWN_ENDPOINT, endpoint).replace(SHOWN_GATEWAY, gateway)
    code = '\n' * cell.line + shown
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), 'exec'), names)
    return printed.getvalue()


def test_each_output_belongs_to_a_cell():
    page = PAGE.read_text()
    assert len(cells()) > 10
    assert sum(cell.printed is not None for cell in cells()) == page.count('```text')


def test_a_wrong_output_is_found():
    check = doctest.OutputChecker().check_output
    assert check('a ... c\n', 'a b c\n', OPTIONS)
    assert not check('100% of 5\n', '80% of 5\n', OPTIONS)


def start_gateway(rig, folder: Path) -> str:
    """Start a gateway before the server of a rig; return the address of its door."""
    rig.fleet.start(
        'gateway',
        'gateway',
        doors="['policy_service']",
        server='/policy_server',
        **{'policy_service.port': 0},
    )
    log = folder / 'gateway.log'
    found = rig.wait(
        lambda: re.search(r'door policy_service: (\S+)', log.read_text()),
        'the door of the gateway',
    )
    return f'grpc://{found[1]}'


@pytest.mark.slow
def test_the_page_runs_as_a_notebook(rig, tmp_path):
    pytest.importorskip('torch', reason='the shipped policies run on torch')
    folder = REPOSITORY / 'config' / 'policies' / 'reach'
    rig.start(policy_path=str(folder))
    endpoint, gateway = rig.fleet.links.endpoint('/policy_server'), start_gateway(rig, tmp_path)
    names: dict[str, Any] = {'__name__': 'notebook'}
    try:
        for cell in cells():
            printed = run(cell, names, endpoint, gateway)
            expected = cell.printed or ''
            is_equal = doctest.OutputChecker().check_output(expected, printed, OPTIONS)
            assert is_equal, f'line {cell.line} prints {printed!r}, the page shows {expected!r}'
    finally:
        names['client'].close()
