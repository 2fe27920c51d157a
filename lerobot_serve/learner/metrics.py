# SPDX-License-Identifier: Apache-2.0
"""The metrics of a learner, from what it shows. The metrics thread reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import math

from prometheus_client.core import Metric

from lerobot_serve.contract.records import LearnerState
from lerobot_serve.telemetry.metric_families import counter, gauge


def collect(shown: LearnerState, rounds: Mapping[str, int]) -> Iterator[Metric]:
    """Yield all families; `rounds` are those that have ended, by how they ended."""
    state = gauge('learner_state', '1 for the state that the learner is in', ['state'])
    for each in LearnerState.State:
        state.add_metric([each.word], float(shown.state is each))
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
    dropped = {each.reason: each.count for each in shown.dropped}
    for name, text, label, counts in (
        ('learner_rounds', 'ended rounds, by how they ended', 'end', rounds),
        ('learner_dropped', 'what was refused or failed, by reason', 'reason', dropped),
    ):
        family = counter(name, text, [label])
        for key, count in sorted(counts.items()):
            family.add_metric([key], count)
        yield family
