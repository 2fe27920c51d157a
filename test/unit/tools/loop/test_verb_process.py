# SPDX-License-Identifier: Apache-2.0
"""Verbs that the loop runs: their results, their time limit, and their end with the loop."""

from __future__ import annotations

import json
import threading

import pytest

from lerobot_serve.tools.loop.verb_process import INTERRUPTED, run_verb
from lerobot_serve.versions.store import VersionStore

LIMIT_S = 60.0
# runs until it is interrupted
ENDLESS = ['versions', 'serve', '--port', '0', '--store']


@pytest.fixture
def store(tmp_path):
    VersionStore.make(tmp_path / 'store')
    return str(tmp_path / 'store')


def test_a_verb_has_its_status_and_what_it_printed(store, tmp_path):
    done = run_verb(['versions', 'list', '--json', '--store', store], LIMIT_S, threading.Event())
    assert (done.status, done.errors) == (0, '')
    assert json.loads(done.output) == {'versions': []}
    missing = str(tmp_path / 'none')
    failed = run_verb(['versions', 'list', '--store', missing], LIMIT_S, threading.Event())
    assert failed.status == 1
    assert 'lerobot-serve versions:' in failed.errors


def test_one_that_takes_too_long_is_interrupted(store):
    done = run_verb([*ENDLESS, store], 1.0, threading.Event())
    assert done.status == INTERRUPTED
    assert done.errors.endswith('not done within 1 s')


def test_it_ends_with_the_loop(store):
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    done = run_verb([*ENDLESS, store], LIMIT_S, stop)
    assert done.status == INTERRUPTED
    assert done.errors.endswith('the loop ends')
