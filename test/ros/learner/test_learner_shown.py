# SPDX-License-Identifier: Apache-2.0
"""What operators see of a real learner: its progress, and its silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from support.nodes.operator import Operator
from support.processes.stopped_process import halt

from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.learners import LearnerView

NODE = '/learner'
PROGRESS, LOSS = 0.42, 0.119
pytestmark = pytest.mark.long
# a shell that runs the tests in its background lets them ignore SIGINT
CODE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from lerobot_serve.tools.cli.main import main
sys.exit(main())
"""


@pytest.mark.slow
def test_a_learner_that_waits_is_heard_of_and_one_that_hangs_is_silent(learner_rig):
    rig = learner_rig
    process = rig.start()
    rig.record('a')
    with FleetClient(60.0) as client:

        def waits(learner: LearnerView) -> bool:
            return learner.state.text.startswith('waits for 1 more') and not learner.is_silent

        def shown(holds: Callable[[LearnerView], bool], what: str) -> LearnerView:
            return rig.wait(lambda: next(filter(holds, client.last_learners()), None), what)

        found = shown(waits, 'its episode is shown')
        assert (found.node, found.phase) == (NODE, 'WAITING')
        assert (found.state.episodes_new, found.state.episodes_wanted) == (1, 2)
        # nothing changes, and it is heard of all the time
        count = len(rig.states)
        rig.wait(lambda: len(rig.states) >= count + 4, 'it publishes its state')
        assert all(not each.is_silent for each in client.last_learners())
        halt(process)
        try:
            silent = shown(lambda each: each.is_silent, 'it is silent')
            assert (silent.phase, silent.state.episodes_new) == ('WAITING', 1)
        finally:
            process.send_signal(signal.SIGCONT)
        shown(waits, 'it is heard of again')


@contextlib.contextmanager
def watched() -> Iterator[Iterator[dict[str, Any]]]:
    """Give the objects of `rollout watch --json`, which Ctrl-C ends with success."""
    words = ('rollout', 'watch', '--json', '--timeout-s', '60')
    command = [sys.executable, '-c', CODE, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield map(json.loads, iter(process.stdout.readline, ''))
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.alone
@pytest.mark.limit_s(900)
def test_rollout_watch_shows_the_progress_of_a_training_and_its_version(
    learner_rig, router_rig, capsys
):
    pytest.importorskip('lerobot')
    pytest.importorskip('torch')
    rig = learner_rig
    router_rig.server('a', 'a')
    router_rig.router(slot_a=['a'])
    router_rig.wait_for_health('slot_b_drained')
    rig.start()
    rig.wait_for(Phase.WAITING)
    with watched() as lines:

        def next_with(holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            found = (each for line in lines for each in line['learners'] if holds(each))
            return next(found)

        next_with(lambda each: each['phase'] == 'WAITING')
        rig.record('a', 'b')
        # the process that converts has no loss and no end
        training = next_with(lambda each: each['progress'] == pytest.approx(PROGRESS))
        assert (training['node'], training['phase'], training['round']) == (NODE, 'TRAINING', 1)
        assert training['loss'] == pytest.approx(LOSS)
        assert training['remaining_s'] > 0
        assert training['parent'].startswith('reach@') and training['latest'] == ''
        assert training['text'] == 'round 1: trains'
        rig.gate.touch()
        published = next_with(lambda each: each['latest'])
        assert (published['episodes'], published['episodes_new']) == (2, 0)
    assert rig.ids() == [published['latest']]
    operator = Operator(capsys)
    (shown,) = operator.reads('rollout', 'status')['learners']
    assert (shown['node'], shown['latest']) == (NODE, published['latest'])
    assert '\n/learner: waiting, last round 1\n' in operator.prints('rollout', 'status')
