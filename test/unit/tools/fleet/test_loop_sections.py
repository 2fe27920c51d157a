# SPDX-License-Identifier: Apache-2.0
"""A learner and a conductor in a fleet file take what they need from the other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lerobot_serve.errors import UserError
from lerobot_serve.tools.fleet.fleet_file import read_fleet
from lerobot_serve.tools.fleet.plan import fleet_plan
from lerobot_serve.tools.fleet.process import FleetProcess, Stage

FLEET = """
servers: {{v1: {{policy: v1, slot: a}}, v2: {{policy: v1, slot: b}}}}
router: {router}
record: {{folder: bags}}
learner: {learner}
loop: {loop}
"""
GATES = '{gate_folder: gates}'


@pytest.fixture
def plan(tmp_path):
    """Returns the processes of a fleet by their names; the policy v1 is there."""
    (tmp_path / 'v1').mkdir()

    def make(
        loop: str = '{}', *, learner: str = '{}', router: str = GATES, more: str = ''
    ) -> dict[str, FleetProcess]:
        text = FLEET.format(loop=loop, learner=learner, router=router) + more
        planned = fleet_plan(read_fleet(text, 'fleet.yaml'), tmp_path)
        return {process.name: process for process in planned}

    return make


def test_both_end_before_what_they_steer(plan):
    stages = [process.stage for process in plan().values()]
    assert stages[-2:] == [Stage.LEARNER, Stage.LOOP]
    assert stages == sorted(stages)


def test_the_loop_takes_the_folders_of_the_others(plan, tmp_path):
    assert plan(learner='{store: models}')['loop'].command == (
        *('loop', 'run', f'--store={tmp_path}/models', f'--gates={tmp_path}/gates'),
        *(f'--recordings={tmp_path}/bags', f'--champion={tmp_path}/v1'),
    )


def test_what_is_given_counts(plan, tmp_path):
    given = '{store: s, gates: g, recordings: r, champion: c, folder: f, plan: "50,100", '
    command = plan(f'{given}robot: arm.yaml, gate_recordings: 40, period_s: 1.5}}')['loop'].command
    assert command[2:] == (
        *(f'--store={tmp_path}/s', f'--gates={tmp_path}/g', f'--recordings={tmp_path}/r'),
        *(f'--champion={tmp_path}/c', f'--folder={tmp_path}/f', f'--robot={tmp_path}/arm.yaml'),
        *('--gate-recordings=40', '--period-s=1.5', '--plan=50,100'),
    )


def test_the_learner_builds_on_the_champion_and_on_what_is_recorded(plan, tmp_path):
    values = plan(learner='{store: models, folder: work, seed: 3}')['learner'].values
    assert values == {
        'parent': f'{tmp_path}/v1',
        'episode_folders': (f'{tmp_path}/bags',),
        'store': f'{tmp_path}/models',
        'folder': f'{tmp_path}/work',
        'seed': 3,
    }


def test_a_version_of_the_store_is_no_path(plan, tmp_path):
    values = plan(learner='{parent: act_so101, trainer: t.yaml}')['learner'].values
    assert values['parent'] == 'act_so101'
    assert values['trainer'] == f'{tmp_path}/t.yaml'


def test_a_namespace_is_that_of_the_router(plan):
    planned = plan(more='namespace: lab\n')
    assert planned['learner'].values['router'] == '/lab/policy_router'
    assert planned['learner'].namespace == 'lab'
    assert planned['loop'].command[-1] == '--router=/lab/policy_router'


@pytest.mark.parametrize(
    ('loop', 'router', 'text'),
    [
        ('{}', '{}', 'needs gates: FOLDER; or the router needs gate_folder'),
        ('{plan: 3}', GATES, 'loop.plan'),
        ('{gate_recordings: 0}', GATES, 'gate_recordings'),
        ('{period_s: soon}', GATES, 'must be a number'),
        ('{gate: x}', GATES, 'did you mean'),
    ],
)
def test_a_mistake_is_refused_with_its_place(plan, loop, router, text):
    with pytest.raises(UserError, match=text):
        plan(loop, router=router)


def test_without_a_recorder_the_folder_must_be_given(tmp_path):
    (tmp_path / 'v1').mkdir()
    text = FLEET.format(loop='{}', learner='{}', router=GATES).replace('record', '# record')
    with pytest.raises(UserError, match='needs recordings: FOLDER'):
        fleet_plan(read_fleet(text, 'fleet.yaml'), Path(tmp_path))
