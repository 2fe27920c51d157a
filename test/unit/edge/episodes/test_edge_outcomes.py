# SPDX-License-Identifier: Apache-2.0
"""How episodes ended, as an edge tells it: the first to say so counts."""

from __future__ import annotations

import pytest
from support.edge.edge_recorder_rig import Asking
from support.edge.request_pipeline_rig import hear
from support.paths import REPOSITORY

from lerobot_serve.edge.episode_outcomes import EPISODES_KEPT, RunOutcome
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds


@pytest.fixture
def asking() -> Asking:
    return Asking()


def outcomes(asking: Asking) -> list[tuple]:
    return [
        (r['episode_id'], r['outcome'], r.get('policy'), r.get('reason'))
        for r in asking.notes.of('outcome')
    ]


def test_the_first_word_on_an_episode_counts(asking):
    episode_id = asking.bench.pipeline.status.episode_id
    asking.recorder.outcome_received(episode_id, 1, 'not asked for anything yet')
    hear(asking.bench, asking.bench.send_request(), policy='act@b')
    for outcome in (9, 1, 2, 1):
        asking.recorder.outcome_received(episode_id, outcome, 'seen')
    asking.recorder.outcome_received('of another robot', 1, 'seen')
    asking.recorder.run_finished(episode_id, RunOutcome.TIMEOUT, '8 s elapsed')
    assert outcomes(asking) == [(episode_id, 'success', 'act@b', 'seen')]


ENDS = [
    (RunOutcome.SUCCESS, 'success'),
    (RunOutcome.FAILURE, 'failure'),
    (RunOutcome.TIMEOUT, 'aborted'),
    (RunOutcome.CANCELLED, 'aborted'),
    (RunOutcome.DEAD, 'aborted'),
    (RunOutcome.STOPPED, 'aborted'),
]


@pytest.mark.parametrize(('outcome', 'word'), ENDS)
def test_a_run_that_nobody_judged_is_aborted(asking, outcome, word):
    asking.recorder.run_finished('run-1', outcome, 'why')
    assert outcomes(asking) == [('run-1', word, None, 'why')]


def test_only_the_last_episodes_are_remembered(asking):
    for number in range(EPISODES_KEPT + 1):
        asking.bench.pipeline.begin_episode(EpisodeRequest('', f'episode {number}'))
        hear(asking.bench, asking.bench.send_request())
    for number in (0, 1):
        asking.recorder.outcome_received(f'episode {number}', 2, '')
    assert outcomes(asking) == [('episode 1', 'failure', None, None)]


def test_the_documentation_has_every_field():
    document = (REPOSITORY / 'docs' / 'trace.md').read_text()
    row = document.partition('\n* `outcome`')[2].partition('\n* ')[0]
    made = records.OutcomeRecord(
        1,
        *RecordIds('r', episode_id='e').fields(),
        outcome='success',
        slot='a',
        policy='p',
        reason='w',
    )
    assert list(records.fields_of(made)) == [
        'kind', 'mono_ns', 'client_id', 'episode_id', 'outcome', 'slot', 'policy', 'reason',
    ]  # fmt: skip
    assert all(f'`{name}`' in row for name in ('outcome', 'slot', 'policy', 'reason'))
