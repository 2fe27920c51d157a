# SPDX-License-Identifier: Apache-2.0
"""Without a path the verbs that read traces read the trace_folder of the router."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from support.paths import REPOSITORY

from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.operator_options import Fleet

INCIDENT = REPOSITORY / 'docs' / 'incidents' / 'stutter'
ROUTER = '/policy_router'
# verb -> its exit status for the traces of a robot that stalled
VERBS = {
    ('audit',): 0,
    ('diagnose', '--client', 'robot_217'): 0,
    ('rollout', 'history'): 0,
    ('stats',): 0,
}


@pytest.fixture
def folder(monkeypatch):
    """Return the parameters of a router that is found."""
    parameters = {'trace_folder': str(INCIDENT)}
    client = SimpleNamespace(
        find_routers=lambda given: [ROUTER],
        known_routers=dict,
        router=lambda name: SimpleNamespace(name=name),
        get_parameters=lambda name, wanted: parameters,
    )
    monkeypatch.setattr(Fleet, 'client', lambda self: contextlib.nullcontext(client))
    return parameters


@pytest.mark.parametrize(('words', 'status'), VERBS.items())
def test_a_verb_without_a_path_reads_the_folder_of_the_router(words, status, folder, capsys):
    assert main([*words, '--router', ROUTER]) == status
    found = capsys.readouterr().out
    assert main([*words, str(INCIDENT)]) == status
    assert capsys.readouterr().out == found


@pytest.mark.parametrize('words', VERBS)
@pytest.mark.parametrize(
    ('value', 'said'),
    [
        ('', 'has no trace_folder, so what it did is not recorded; set trace_folder'),
        ('/of/another/machine', 'is not on this machine; run this there, or give a copy'),
    ],
)
def test_a_folder_that_is_not_here_is_named_with_what_to_do(words, value, said, folder, capsys):
    folder['trace_folder'] = value
    assert main([*words]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert not value or error.endswith(f'lerobot-serve {" ".join(words)} FOLDER\n')
