# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve up --print-file` prints only what `up` would start."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.verbs import up

GOOD = 'servers:\n  one: {policy_path: null:joints=6}\n'


def printed(file: Path, text: str) -> int:
    file.write_text(text)
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return up.main(parser.parse_args([str(file), '--print-file']))


def test_a_fleet_file_is_printed_as_it_is(tmp_path, capsys):
    assert printed(tmp_path / 'fleet.yaml', GOOD) == 0
    assert capsys.readouterr().out == GOOD


@pytest.mark.parametrize('wrong', ['serverz: {}\n', GOOD.replace('policy_path', 'polcy_path')])
def test_an_unknown_key_is_refused_as_up_refuses_it(tmp_path, capsys, wrong):
    with pytest.raises(UserError, match='did you mean'):
        printed(tmp_path / 'fleet.yaml', wrong)
    assert capsys.readouterr().out == ''
