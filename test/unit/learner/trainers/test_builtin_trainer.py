# SPDX-License-Identifier: Apache-2.0
"""The built-in trainer: bytes that repeat, what it refuses, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
import hashlib
import json
import math
from pathlib import Path
import re
import shutil
import threading

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('pyarrow', reason='reads datasets (TORCH=none)')

from support.learner.tiny_dataset import (  # noqa: E402
    CAMERAS,
    Episode,
    features,
    NAMES,
    read_rows,
    write_dataset,
    write_rows,
)
from support.learner.trainer_rig import REACH, training_job  # noqa: E402

from lerobot_serve.learner.trainers.base import (  # noqa: E402
    Progress,
    TrainerError,
    TrainingJob,
    TrainingStopped,
)
from lerobot_serve.learner.trainers.builtin import BuiltinTrainer  # noqa: E402
from lerobot_serve.learner.trainers.trainer_file import BuiltinOptions  # noqa: E402
from lerobot_serve.policies.base import LoadOptions  # noqa: E402
from lerobot_serve.policies.builtin.policy import load  # noqa: E402
from lerobot_serve.tools.learning.steps import load_trainer  # noqa: E402

OPTIONS = BuiltinOptions(steps=4, batch_size=8)
EPISODES = (
    Episode(['policy'] * 6),
    Episode(['policy'] * 3 + ['person'] * 5, 'failure'),
    Episode(['policy', 'ladder', 'policy', 'policy'], None),
)


@dataclass
class Rig:
    """A job and what is reported."""

    folder: Path
    reports: list[Progress] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    number: int = 0

    @property
    def data(self) -> Path:
        return self.folder / 'data'

    def job(self, **others: object) -> TrainingJob:
        self.number += 1
        output = self.folder / f'new{self.number}'
        new = frozenset({1})
        return training_job(self.folder, **{'output': output, 'new_episodes': new, **others})

    def train(self, options: BuiltinOptions = OPTIONS, **others: object) -> Path:
        return BuiltinTrainer(options).train(self.job(**others), self.reports.append, self.stop)

    def refused(self, **others: object) -> str:
        with pytest.raises(TrainerError) as refusal:
            self.train(**others)
        assert '\n' not in str(refusal.value)
        assert not list(self.folder.glob('new*'))
        return str(refusal.value)

    def change_info(self, **others: object) -> None:
        file = self.data / 'meta/info.json'
        file.write_text(json.dumps(json.loads(file.read_text()) | others))

    def change_rows(self, change) -> None:
        rows = read_rows(self.data)
        change(rows)
        write_rows(self.data, rows)


@pytest.fixture
def rig(tmp_path) -> Rig:
    write_dataset(tmp_path / 'data', EPISODES)
    return Rig(tmp_path)


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / 'model.safetensors').read_bytes()).hexdigest()


def test_the_same_job_gives_the_same_bytes_and_another_seed_others(rig):
    first, second = rig.train(), rig.train()
    assert digest(first) == digest(second)
    assert digest(first) != digest(REACH)
    assert digest(rig.train(seed=8)) != digest(first)
    assert digest(rig.train(new_episodes=frozenset())) != digest(first)


def test_the_new_folder_is_whole_and_a_policy(rig):
    folder = rig.train()
    assert sorted(file.name for file in folder.iterdir()) == ['model.safetensors', 'policy.json']
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in folder.iterdir())
    assert (folder / 'policy.json').read_bytes() == (REACH / 'policy.json').read_bytes()
    described = load(LoadOptions(str(folder))).describe()
    parent = load(LoadOptions(str(REACH))).describe()
    assert described.fingerprint.startswith('reach@')
    assert described.fingerprint != parent.fingerprint
    assert not list(rig.folder.glob('*.part'))


def test_the_statistics_stay_those_of_the_parent(rig):
    before, after = (load(LoadOptions(str(path))).network for path in (REACH, rig.train()))
    for name in ('state_mean', 'state_std', 'offset_mean', 'offset_std'):
        assert torch.equal(getattr(before, name), getattr(after, name))


def test_a_training_continues_where_the_last_one_ended(rig):
    first = rig.train()
    assert digest(rig.train(parent=first)) not in (digest(first), digest(REACH))


def test_progress_ends_at_the_last_step(rig):
    rig.train(BuiltinOptions(steps=25, batch_size=2))
    assert [report.done_share for report in rig.reports] == [0.0, 0.4, 0.8, 1.0]
    assert rig.reports[0].loss is None and math.isfinite(rig.reports[-1].loss)
    assert rig.reports[-1].remaining_s == 0


def test_only_examples_change_the_policy(rig):
    """What the ladder did, and a policy without success, may be anything."""
    wanted = digest(rig.train())

    def spoil(rows):
        for row in rows:
            alone = row['episode_index'] == 1 and row['complementary_info.source'] == 'policy'
            if row['episode_index'] == 2 or alone:
                row['action'] = [9.0] * len(NAMES)

    rig.change_rows(spoil)
    assert digest(rig.train()) == wanted
    rig.change_rows(lambda rows: rows[0].update(action=[9.0] * len(NAMES)))
    assert digest(rig.train()) != wanted


def test_global_settings_of_torch_are_put_back(rig):
    torch.set_num_threads(1)
    rig.train(BuiltinOptions(steps=2, batch_size=2, cpu_threads=2))
    assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_stop_ends_it_and_leaves_nothing(rig):
    def stop_at_once(_):
        rig.stop.set()

    job = rig.job()
    with pytest.raises(TrainingStopped):
        BuiltinTrainer(OPTIONS).train(job, stop_at_once, rig.stop)
    assert not list(rig.folder.glob('new*'))


class Clock:
    """Advances by a second with each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.mark.parametrize(
    ('budget_s', 'expected'),
    [(0.5, 'reading the dataset'), (4.0, 'step 2 of 4, all of them take about')],
)
def test_a_budget_that_is_too_small_fails_with_its_remedy(rig, budget_s, expected):
    job = rig.job(budget_s=budget_s)
    with pytest.raises(TrainerError) as refusal:
        BuiltinTrainer(OPTIONS, clock=Clock()).train(job, rig.reports.append, rig.stop)
    assert expected in str(refusal.value)
    assert 'give it more time, or fewer steps' in str(refusal.value)
    assert not list(rig.folder.glob('new*'))


@pytest.mark.parametrize(
    ('change', 'expected'),
    [
        ({'fps': 60}, 'the frames a second of .* are 60.0, .* are 30.0'),
        ({'codebase_version': 'v2.1'}, "codebase_version must be v3.0, got 'v2.1'"),
        ({'features': {}}, 'features: observation.state is missing'),
        ({'fps': 'many'}, 'fps must be a number above 0'),
        ({'features': features() | {CAMERAS[0]: {'dtype': 'string'}}}, 'the cameras of'),
        (
            {'features': features() | {'observation.images.top': features()[CAMERAS[0]]}},
            'the cameras of .*top',
        ),
        (
            {'features': features() | {'action': {'dtype': 'float32', 'names': NAMES[::-1]}}},
            r"the action names of .* are \['gripper.pos', .*\], those of the policy reach@",
        ),
        (
            {'features': features() | {'observation.state': {'dtype': 'x', 'names': ['a']}}},
            r"the state names of .* are \['a'\]",
        ),
        (
            {'features': {k: v for k, v in features().items() if 'source' not in k}},
            'no column complementary_info.source, .*without --robot',
        ),
        ({'features': features() | {CAMERAS[0]: {'dtype': 'video'}}}, 'lacks the picture of'),
    ],
)
def test_another_dataset_is_refused(rig, change, expected):
    rig.change_info(**change)
    assert re.search(expected, rig.refused())


def replace_value(name, value, row=3):
    return lambda rows: rows[row].update({name: value})


@pytest.mark.parametrize(
    ('change', 'expected'),
    [
        (list.clear, 'has no rows; record episodes'),
        (
            replace_value('action', [0.0] * 5 + [math.nan]),
            '1 rows of action are not finite, the first is row 3 of episode 0; leave its bag out',
        ),
        (replace_value('observation.state', [math.inf] * 6, 8), 'row 2 of episode 1'),
        (replace_value('action', [0.0] * 5), 'action has 6 names and rows of [5, 6] values'),
        (replace_value('action', None), 'action has 6 names and rows of [6, None] values'),
        (replace_value(CAMERAS[0], None), f'row 3 of {CAMERAS[0]} has no picture'),
        (
            replace_value(CAMERAS[1], {'bytes': b'none', 'path': None}),
            f'row 3 of {CAMERAS[1]} has a picture that is neither JPEG nor PNG',
        ),
    ],
)
def test_damaged_rows_are_refused(rig, change, expected):
    rig.change_rows(change)
    assert expected in rig.refused()


def test_a_dataset_without_files_or_outcomes(rig):
    outcomes = rig.data / 'meta/lerobot_serve/episodes.jsonl'
    outcomes.write_text('{"outcome"')
    assert 'has the outcomes of the episodes and cannot be read' in rig.refused()
    outcomes.unlink()
    assert 'has the outcomes of the episodes and cannot be read' in rig.refused()
    shutil.rmtree(rig.data / 'data')
    assert 'no files with rows' in rig.refused()
    (rig.data / 'meta/info.json').unlink()
    assert 'is not a LeRobotDataset' in rig.refused()


def test_rows_without_an_example_are_refused(rig):
    shutil.rmtree(rig.data)
    write_dataset(rig.data, [Episode(['policy'] * 4, 'failure'), Episode(['ladder'] * 2)])
    text = rig.refused()
    assert 'none of the 6 rows of' in text and 'correct the robot' in text


def test_another_parent_is_refused(rig):
    assert 'is not a directory' in rig.refused(parent=rig.folder / 'none')
    lerobot = rig.folder / 'act'
    lerobot.mkdir()
    (lerobot / 'config.json').write_text('{}')
    text = rig.refused(parent=lerobot)
    assert 'of the kind lerobot; use a trainer file, such as config/trainers/' in text
    with pytest.raises(TrainerError, match='of the kind lerobot'):
        BuiltinTrainer(OPTIONS).check(lerobot)
    BuiltinTrainer(OPTIONS).check(REACH)


def test_a_training_that_diverges_is_refused(rig):
    with pytest.raises(TrainerError, match=r'diverged: the loss of step .* lower learning_rate'):
        rig.change_rows(lambda rows: [row.update(action=[3e38] * 6) for row in rows])
        rig.train(BuiltinOptions(steps=20, batch_size=8, learning_rate=1.0))
    assert not list(rig.folder.glob('new*'))


def test_it_is_found_by_name_and_file(rig, tmp_path):
    assert isinstance(load_trainer('builtin'), BuiltinTrainer)
    file = tmp_path / 'mine.yaml'
    file.write_text('builtin: {steps: 4, batch_size: 8}')
    wanted = digest(rig.train())
    folder = load_trainer(str(file)).train(rig.job(), rig.reports.append, rig.stop)
    assert digest(folder) == wanted
    with pytest.raises(TrainerError, match='the trainer is builtin or a trainer file'):
        load_trainer('bultin')


def test_pictures_are_those_of_their_rows(rig):
    """A picture that changes at a row that is drawn changes the result, and no other does."""
    wanted = digest(rig.train())
    rows = read_rows(rig.data)
    black = {'bytes': png(np.zeros((16, 16, 3), np.uint8)), 'path': None}
    # of a failure, before the person came
    rows[6][CAMERAS[0]] = black
    write_rows(rig.data, rows)
    assert digest(rig.train()) == wanted
    rows[9][CAMERAS[0]] = black
    write_rows(rig.data, rows)
    assert digest(rig.train()) != wanted


def png(pixels: np.ndarray) -> bytes:
    import cv2

    return cv2.imencode('.png', pixels)[1].tobytes()
