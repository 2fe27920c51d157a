# SPDX-License-Identifier: Apache-2.0
"""The job of a trainer: the policy of the demo, continued on a dataset below a folder."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.learner.trainers.base import TrainingJob
from support.paths import REPOSITORY

REACH = REPOSITORY / 'config' / 'policies' / 'reach'


def training_job(folder: Path, **fields: object) -> TrainingJob:
    given = {
        'dataset': folder / 'data',
        'parent': REACH,
        'output': folder / 'new',
        'work': folder / 'work',
        'new_episodes': frozenset({0, 1}),
        'seed': 7,
        'budget_s': 300.0,
    }
    return TrainingJob(**{**given, **fields})
