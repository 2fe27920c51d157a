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
    state = learner.state
    return without_nulls(
        {
            'phase': learner.phase,
            'text': bounded(state.text),
            'round': state.round,
            'is_running': learner.is_running,
            'parent': bounded(state.parent),
            'latest': bounded(state.latest),
            'episodes': state.episodes,
            'episodes_new': state.episodes_new,
            'episodes_wanted': state.episodes_wanted,
            'progress': rounded(learner.progress, 3),
            'loss': significant(learner.loss, LOSS_DIGITS),
            'has_diverged': learner.has_diverged,
            'remaining_s': whole(learner.remaining_s),
            'dropped': {bounded(each.reason): each.count for each in state.dropped},
        }
    )
