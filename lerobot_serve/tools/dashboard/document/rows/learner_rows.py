# SPDX-License-Identifier: Apache-2.0
"""The row of a learner in the document. Pure."""

from __future__ import annotations

from lerobot_serve.tools.dashboard.document.merge_patch import Json, without_nulls
from lerobot_serve.tools.dashboard.document.printed_numbers import (
    bounded,
    rounded,
    significant,
    whole,
)
from lerobot_serve.tools.operate.learners.learner_state import LearnerView

LOSS_DIGITS = 4


def learner_row(learner: LearnerView) -> Json:
    """Return the row of a learner that is heard of; a number that is not known is absent."""
    return without_nulls(
        {
            'phase': learner.phase,
            'text': bounded(learner.text),
            'round': learner.round,
            'is_running': learner.is_running,
            'parent': bounded(learner.parent),
            'latest': bounded(learner.latest),
            'episodes': learner.episodes,
            'episodes_new': learner.episodes_new,
            'episodes_wanted': learner.episodes_wanted,
            'progress': None if learner.progress is None else rounded(learner.progress, 3),
            'loss': None if learner.loss is None else significant(learner.loss, LOSS_DIGITS),
            'has_diverged': learner.has_diverged,
            'remaining_s': None if learner.remaining_s is None else whole(learner.remaining_s),
            'dropped': {bounded(reason): count for reason, count in learner.dropped},
        }
    )
