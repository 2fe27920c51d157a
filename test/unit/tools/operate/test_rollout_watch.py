# SPDX-License-Identifier: Apache-2.0
"""What `rollout watch` prints, and what an interrupted load prints, without a router."""

from __future__ import annotations

from collections.abc import Sequence
import io
import json
from typing import Any

import pytest
from rich.console import Console
from support.tools.operator_states import canary_of, changed, learner_of, router_of, slot_of

from lerobot_serve.contract.records import GuardState, ShadowSummary
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.cli import rollout_loading
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.operate.learners import LearnerView
from lerobot_serve.tools.operate.outcome import Result
from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader
from lerobot_serve.tools.operate.rollout.rollout_watch import RolloutWatch
from lerobot_serve.tools.operate.rollout.steering import lifts_verdict_alone
from lerobot_serve.tools.operate.rule import Verb

RUNNING = router_of('/r', split_percent=50, canary=canary_of(CanaryPhase.RUNNING, text='runs'))
BACK = changed(
    RUNNING, split_percent=100, canary=canary_of(CanaryPhase.ROLLED_BACK, text='by kim')
)


LACKS = '2 of 12 episodes in shadow'


class FakeClient:
    """
    Gives these states one after the other, then Ctrl-C; the router has a shadow if named. At each
    poll it finds the next ones of `learners`, and then the last ones.
    """

    def __init__(
        self,
        states: Sequence[RouterView],
        shadow_server: str = '',
        learners: Sequence[Sequence[LearnerView]] = ((),),
    ) -> None:
        self._states, self._now = list(states), RUNNING
        self._shadow_server, self._learners = shadow_server, list(learners)

    def last_learners(self) -> list[LearnerView]:
        return list(self._learners.pop(0) if len(self._learners) > 1 else self._learners[0])

    def get_parameters(self, _: str, names: Sequence[str]) -> dict[str, Any]:
        return dict.fromkeys(names) | {'shadow_server': self._shadow_server}

    def shadow(self, _: str, timeout_s: float) -> ShadowSummary:
        assert self._shadow_server and timeout_s == 0.0
        return ShadowSummary(shadow_policy='v3@1', unmet_requirements=LACKS)

    def wait_for_router(self, _: str, accepts: Any, timeout_s: float) -> RouterView | None:
        if not self._states:
            raise KeyboardInterrupt
        self._now = self._states.pop(0)
        return self._now if accepts(self._now) else None

    def last_router(self, _: str) -> RouterView:
        return self._now


def watched(capsys, *states: RouterView, **options: Any) -> list[str]:
    console = options.pop('console', Console(file=io.StringIO()))
    learners = options.pop('learners', ((),))
    client = FakeClient(states, options.pop('shadow_server', ''), learners)
    RolloutWatch(client, RUNNING, console=console, **options).run()
    return capsys.readouterr().out.splitlines()


def test_without_a_terminal_there_is_a_line_for_each_change(capsys):
    lines = watched(capsys, RUNNING, BACK, BACK)
    assert [line[9:] for line in lines] == [
        '/r: runs',
        'rollout: running -> rolled back; split to slot a: 50 % -> 100 %. by kim',
    ]


def test_a_router_that_falls_silent_is_reported_once(capsys):
    silent = changed(RUNNING, age_s=4.0)
    lines = watched(capsys, silent, changed(silent, age_s=5.0), RUNNING)
    assert 'has published no state for 4 s' in lines[1]
    assert 'publishes its state again' in lines[2]
    assert len(lines) == 3


def test_json_has_an_object_for_each_line(capsys):
    found = [json.loads(line) for line in watched(capsys, BACK, as_json=True)]
    assert [each['state'] for each in found] == ['running', 'rolled_back']


def test_a_terminal_is_redrawn(capsys):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    assert watched(capsys, BACK, RUNNING, console=console) == []
    assert 'rolled back' in file.getvalue() and 'changes since this began' in file.getvalue()


def guarded(age_s: float) -> RouterView:
    guards = tuple(GuardState(f'guard_{number}', value=1.0, limit=2.0) for number in range(12))
    slots = (slot_of('a', 'v1@1'), slot_of('b', 'v2@2', text='a long text ' * 12))
    canary = changed(RUNNING.canary, guards=guards)
    return changed(RUNNING, slots=slots, canary=canary, age_s=age_s)


@pytest.mark.parametrize(('age_s', 'width'), [(600.0, 80), (0.0, 80), (600.0, 40)])
def test_a_small_terminal_shows_the_age_of_the_state_and_the_newest_change(age_s, width):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width, height=24)
    watch = RolloutWatch(FakeClient([]), guarded(age_s), console=console)
    watch.past = [f'decision {number}' for number in range(8)]
    watch.decisions = ['10:00:00 the first change', '10:00:01 the newest change']
    watch.run()
    # without the ends of its rows
    shown = ' '.join(file.getvalue().split())
    assert f'state is {age_s:.0f} s old' in shown
    assert ('/r was killed or hangs' in shown) == (age_s > 0)
    assert 'the newest change' in shown
    assert len(watch._screen().plain.splitlines()) <= 24


def test_eight_changes_leave_no_decision_of_before():
    watch = RolloutWatch(FakeClient([]), RUNNING, console=Console(file=io.StringIO()))
    watch.past = [f'decision {number}' for number in range(8)]
    watch.decisions = [f'change {number}' for number in range(9)]
    lines = watch.text(shown=8).splitlines()
    assert 'decision' not in watch.text(shown=8) and lines[-8:] == watch.decisions[1:]


def test_the_last_decisions_are_those_of_before_and_the_changes_since(capsys):
    watch = RolloutWatch(FakeClient([BACK]), RUNNING, console=Console(file=io.StringIO()))
    watch.past = [f'decision {number}' for number in range(9)]
    assert 'decision 0' not in watch.text() and 'decision 1\n' in watch.text()
    watch.poll(0.0)
    lines = watch.text(shown=3).splitlines()
    begin = lines.index('last decisions, by the trace of the router:')
    assert lines[begin + 1 : -1] == ['decision 7', 'decision 8', 'changes since this began:']
    assert 'rolled back' in lines[-1]


def test_what_a_rollout_waits_for_in_the_shadow_is_shown(capsys):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    watched(capsys, BACK, console=console, shadow_server='/rehearsal')
    assert f'slot b lacks: {LACKS}' in file.getvalue()
    lines = watched(capsys, BACK, as_json=True, shadow_server='/rehearsal')
    assert {json.loads(line)['shadow']['unmet'] for line in lines} == {LACKS}


LEARNER = learner_of(
    '/learner', 'TRAINING', text='round 1: trains', round=1, progress=0.31, loss=0.5
)
LATER = changed(LEARNER, progress=0.42)


def test_a_learner_is_a_line_when_it_is_found_and_for_each_tenth(capsys):
    learners = ((), (LEARNER,), (changed(LEARNER, progress=0.39),), (LATER,))
    lines = watched(capsys, *(RUNNING,) * 4, learners=learners)
    assert [line[9:] for line in lines] == [
        '/r: runs',
        '/learner: training, round 1, 31 %, loss 0.5. round 1: trains',
        '/learner: training, round 1, 42 %, loss 0.5. round 1: trains',
    ]


def test_json_has_the_learners_of_its_moment(capsys):
    lines = watched(capsys, RUNNING, RUNNING, as_json=True, learners=((LEARNER,), (LATER,)))
    found = [json.loads(line)['learners'] for line in lines]
    assert [[each['progress'] for each in learners] for learners in found] == [[], [0.31], [0.42]]
    assert found[1][0]['node'] == '/learner' and found[1][0]['phase'] == 'TRAINING'


def test_a_terminal_has_a_section_for_learners_only_if_there_is_one(capsys):
    def screen(*learners: LearnerView) -> str:
        file = io.StringIO()
        console = Console(file=file, force_terminal=True, width=100)
        watched(capsys, RUNNING, RUNNING, console=console, learners=(learners,))
        return file.getvalue()

    assert '/learner: training, round 1' in screen(LEARNER)
    assert '  progress   [#########' in screen(LEARNER)
    assert 'learner' not in screen()


def test_an_interrupted_load_names_what_is_done_and_what_is_left(capsys):
    def begin(loader: ServerLoader) -> Result:
        progress = loader.progress
        progress.serves, progress.has_changed = {'/a1': 'serves v2', '/a2': 'serves v1'}, True
        raise KeyboardInterrupt

    assert rollout_loading.run_loading(None, 1.0, begin).status == 130
    assert 'interrupted. Now /a1 serves v2; /a2 serves v1.' in capsys.readouterr().err


def test_a_line_of_progress_controls_no_terminal(capsys):
    rollout_loading.show('wait for robot_7: episode \x1b[2J\x1b]0;x\x07 runs in slot b')
    assert '\x1b' not in (shown := capsys.readouterr().err) and shown.count('\n') == 1


def test_a_verdict_without_a_plan_is_lifted_alone():
    barred = changed(BACK, canary=canary_of(), slots=(slot_of('b', 'v2@2', 'BARRED'),))
    lifting = [verb for verb in Verb if lifts_verdict_alone(verb, barred)]
    assert lifting == [Verb.RESUME, Verb.UNDO]
    for other in (changed(barred, canary=BACK.canary), changed(barred, slots=(slot_of('b'),))):
        assert not lifts_verdict_alone(Verb.RESUME, other)


def test_a_text_of_the_network_controls_no_terminal(capsys):
    nasty = changed(BACK, canary=changed(BACK.canary, text='x\x1b[2J\nforged'))
    lines = watched(capsys, nasty)
    assert len(lines) == 2
    assert not any('\x1b' in line for line in lines)
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    watched(capsys, nasty, RUNNING, console=console)
    assert '\x1b[2J' not in file.getvalue()
