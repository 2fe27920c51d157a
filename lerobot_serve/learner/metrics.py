# SPDX-License-Identifier: Apache-2.0
"""The metrics of a learner, from what it shows. The metrics thread reads."""

from __future__ import annotations

from collections.abc import Iterator
import math

from prometheus_client.core import Metric

from lerobot_serve.learner.rounds.settings import Shown
from lerobot_serve.learner.rounds.states import Phase
from lerobot_serve.telemetry.metric_families import counter, gauge


def collect(shown: Shown) -> Iterator[Metric]:
    """Yield all families."""
    state = gauge('learner_state', '1 for the state that the learner is in', ['state'])
    for phase in Phase:
        state.add_metric([phase.name.lower()], float(shown.phase is phase))
    yield state
    for name, text, value in (
        ('learner_round', 'number of the running or last round', shown.round),
        ('learner_episodes', 'episodes that the learner has', shown.episodes),
        ('learner_episodes_new', 'episodes since the last round', shown.episodes_new),
        ('learner_progress', 'done share of the running step', shown.progress),
        ('learner_loss', 'last loss of the running training', shown.loss),
    ):
        if not math.isnan(value):
            yield gauge(name, text, value=value)
    for name, text, label, counts in (
        ('learner_rounds', 'ended rounds, by how they ended', 'end', shown.rounds),
        ('learner_dropped', 'what was refused or failed, by reason', 'reason', shown.dropped),
    ):
        family = counter(name, text, [label])
        for key, count in sorted(counts.items()):
            family.add_metric([key], count)
        yield family
