# SPDX-License-Identifier: Apache-2.0
"""Programs as trainers: placeholders, log, progress, how they end, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, product, repeat
import json
from pathlib import Path
import sys
import threading

import pytest

pytest.importorskip('torch', reason='policies are detected by their kinds')

from support.learner.trainer_rig import REACH, training_job

from lerobot_serve.learner.trainers.base import (
    Progress,
    TrainerError,
    TrainingJob,
    TrainingStopped,
)
from lerobot_serve.learner.trainers.command import (
    Cause,
    CommandTrainer,
    ending_signal,
    TrainingVerdict,
    verdict,
)
from lerobot_serve.learner.trainers.trainer_file import CommandOptions

COPY = """
import pathlib, shutil, sys
parent, output = sys.argv[1:3]
for step in (1, 2, 4):
    print('step:%d loss:%.3f' % (step, 1 / step), flush=True)
shutil.copytree(parent, pathlib.Path(output, 'checkpoints/000004'))
pathlib.Path(output, 'checkpoints/last').symlink_to('000004')
"""
# waits for SIGINT, and ends with it after it saved, if it saves
WAIT = """
import pathlib, shutil, signal, sys, time
parent, output, saves = sys.argv[1:4]
if saves == 'yes':
    shutil.copytree(parent, pathlib.Path(output, 'checkpoints/last'))
print('step:1', flush=True)
time.sleep(600)
"""
BUDGET_S = 60.0
CONTRACT = {
    'policy_type': 'builtin.reach',
    'state_names': ['a'],
    'action_names': ['a'],
    'cameras': [],
    'chunk_size': 30,
    'trained_fps': 30.0,
    'state_class': 1,
    'observation_steps': 1,
    'observation_stride_steps': 1,
}


@dataclass
class Rig:
    """A job, and what a trainer reports and reads."""

    folder: Path
    reports: list[Progress] = field(default_factory=list)
    read: list[Path] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    changed: dict[str, object] = field(default_factory=dict)
    # of the clock, beyond the budget, once the program has printed a step; empty for never
    late_s: Iterator[float] = field(default_factory=lambda: iter(()))

    @property
    def job(self) -> TrainingJob:
        new = frozenset({4, 2})
        return training_job(self.folder, new_episodes=new, budget_s=BUDGET_S)

    def clock(self) -> float:
        has_begun = any(report.done_share for report in self.reports)
        return BUDGET_S + next(self.late_s, -BUDGET_S) if has_begun else 0.0

    def contract(self, folder, dataset, tick):
        """Plays a loaded policy: the first is the parent."""
        self.read.append(folder)
        tick()
        return CONTRACT if len(self.read) == 1 else CONTRACT | self.changed

    def train(self, source: str, *words: str, **options: object) -> Path:
        command = (sys.executable, '-c', source, *words)
        given = {'result': '{output}/checkpoints/last', 'steps': 4, 'end_s': 0.2} | options
        trainer = CommandTrainer(CommandOptions(command, **given), self.clock, self.contract)
        return trainer.train(self.job, self.reports.append, self.stop)

    def refused(self, source: str, *words: str, **options: object) -> str:
        with pytest.raises(TrainerError) as refusal:
            self.train(source, *words, **options)
        assert not (self.folder / 'new').exists()
        assert not (self.folder / 'new.part').exists()
        return str(refusal.value)


@pytest.fixture
def rig(tmp_path) -> Rig:
    return Rig(tmp_path)


def test_a_program_leaves_a_policy(rig):
    assert rig.train(COPY, '{parent}', '{output}') == rig.folder / 'new'
    assert sorted(file.name for file in (rig.folder / 'new').iterdir()) == [
        'model.safetensors',
        'policy.json',
    ]
    assert rig.read == [REACH, rig.folder / 'work/run/checkpoints/last']
    first, *_, last = rig.reports
    assert first.done_share == 0 and first.loss is None
    assert (last.done_share, last.loss) == (1.0, 0.25)
    assert 'step:2 loss:0.500' in (rig.folder / 'work/train.log').read_text()


def test_placeholders_reach_the_program(rig):
    source = f"""
import json, os, pathlib, sys
pathlib.Path(sys.argv[1], 'said.json').write_text(json.dumps([sys.argv[2:], os.environ['S']]))
sys.argv[1:] = sys.argv[3:5]
{COPY}"""
    words = ('{work}', '{dataset}', '{parent}', '{output}', '{seed}', '{budget_s}', '{steps}')
    rig.train(source, *words, '{new_episodes}', environment={'S': 's{seed}'})
    (words, variable) = json.loads((rig.folder / 'work/said.json').read_text())
    work = rig.folder / 'work'
    assert words[:3] == [str(rig.folder / 'data'), str(REACH), str(work / 'run')]
    assert words[3:6] == ['7', '60', '4'] and variable == 's7'
    assert json.loads(Path(words[6]).read_text()) == [2, 4]


def test_a_nonzero_status_has_the_last_line(rig):
    source = f'{COPY}\nprint("CUDA out of memory. \\n"); sys.exit(3)'
    text = rig.refused(source, '{parent}', '{output}')
    assert 'exit status 3: CUDA out of memory.; all of it is in' in text and 'train.log' in text


def test_a_program_that_is_not_there(rig):
    options = CommandOptions(('/nowhere/train',), '{output}')
    with pytest.raises(TrainerError, match='exit status 127: /nowhere/train cannot be started'):
        CommandTrainer(options, read=rig.contract).train(rig.job, rig.reports.append, rig.stop)
    with pytest.raises(TrainerError, match=r"'/nowhere/train' of the trainer is not found; inst"):
        CommandTrainer(options).check(REACH)


def test_no_result_is_named(rig):
    text = rig.refused('pass')
    assert f'left no folder {rig.folder}/work/run/checkpoints/last; correct `result`' in text


def test_another_contract_is_refused(rig):
    rig.changed = {'chunk_size': 8, 'action_names': ['b']}
    text = rig.refused(COPY, '{parent}', '{output}')
    assert "action_names: ['a'] before, ['b'] after; chunk_size: 30 before, 8 after" in text


def test_the_budget_ends_a_program_and_keeps_its_checkpoint(rig):
    rig.late_s = repeat(1.0)
    assert rig.train(WAIT, '{parent}', '{output}', 'yes').is_dir()
    assert 'KeyboardInterrupt' in (rig.folder / 'work/train.log').read_text()


def test_the_budget_ends_a_program_without_a_checkpoint(rig):
    rig.late_s = repeat(1.0)
    text = rig.refused(WAIT, '{parent}', '{output}', 'no')
    assert 'ended after its 60 s, before its first checkpoint' in text and 'more time' in text


def test_a_program_that_ignores_signals_ends_by_kill(rig):
    rig.late_s = chain((1.0, 1.3), repeat(1.6))
    deaf = 'import signal\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\n'
    assert 'its last line: step:1' in rig.refused(deaf + WAIT, '{parent}', '{output}', 'no')


def test_a_stop_leaves_nothing(rig):
    def stop_at_a_step(progress):
        rig.reports.append(progress)
        if progress.done_share:
            rig.stop.set()

    command = (sys.executable, '-c', WAIT, '{parent}', '{output}', 'yes')
    options = CommandOptions(command, '{output}/checkpoints/last', steps=4, end_s=0.2)
    with pytest.raises(TrainingStopped):
        CommandTrainer(options, read=rig.contract).train(rig.job, stop_at_a_step, rig.stop)
    assert not (rig.folder / 'new').exists()


def test_a_round_begins_without_what_the_last_one_left(rig):
    left = rig.folder / 'work/run/checkpoints/last'
    left.mkdir(parents=True)
    assert 'left no folder' in rig.refused('pass')


def test_names_and_rate_of_a_lerobot_policy_come_along(rig):
    (rig.folder / 'data/meta').mkdir(parents=True)
    (rig.folder / 'data/meta/info.json').write_text('{"fps": 30}')
    source = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1], 'checkpoints/last')
folder.mkdir(parents=True)
(folder / 'config.json').write_text('{}')
"""
    folder = rig.train(source, '{output}')
    assert (folder / 'meta/info.json').read_text() == '{"fps": 30}'


def test_check_refuses_what_cannot_be_trained(tmp_path):
    trainer = CommandTrainer(CommandOptions((sys.executable,), '{output}'))
    trainer.check(REACH)
    with pytest.raises(TrainerError, match='holds neither'):
        trainer.check(tmp_path)
    (tmp_path / 'policy.json').write_text('{"kind": "exported"}')
    with pytest.raises(TrainerError, match='the kind exported, which has no weights'):
        trainer.check(tmp_path)


EXPECTED = {
    (Cause.BY_ITSELF, True, True): TrainingVerdict.POLICY,
    (Cause.BY_ITSELF, True, False): TrainingVerdict.NO_RESULT,
    (Cause.BY_ITSELF, False, True): TrainingVerdict.FAILED,
    (Cause.BY_ITSELF, False, False): TrainingVerdict.FAILED,
    (Cause.BUDGET, True, True): TrainingVerdict.POLICY,
    (Cause.BUDGET, True, False): TrainingVerdict.TOO_LATE,
    (Cause.BUDGET, False, True): TrainingVerdict.POLICY,
    (Cause.BUDGET, False, False): TrainingVerdict.TOO_LATE,
}


@pytest.mark.parametrize(
    ('cause', 'succeeded', 'has_result'), product(Cause, (True, False), (True, False))
)
def test_the_table_of_verdicts(cause, succeeded, has_result):
    wanted = EXPECTED.get((cause, succeeded, has_result), TrainingVerdict.STOPPED)
    assert (cause is Cause.STOP) == (wanted is TrainingVerdict.STOPPED)
    assert verdict(cause, succeeded=succeeded, has_result=has_result) is wanted


def test_signals_grow_stronger():
    sent = [ending_signal(since_s, 30.0) for since_s in (0.0, 29.9, 30.0, 59.9, 60.0, 1e6)]
    assert sent == [b'I', b'I', b'T', b'T', b'K', b'K']
