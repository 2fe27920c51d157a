# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of a directory that LeRobot wrote."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip('lerobot', reason='LeRobot is not installed (TORCH=none)')

from support.policies.lerobot_rig import folder_of, NAMES
from support.tools.findings import by_name

from lerobot_serve.policies.registry import detect_kind
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.policy import examine_policy


def examined(folder, **more):
    said = {'state_names': NAMES, 'action_names': NAMES, 'trained_fps': 30.0, 'cpu_threads': 1}
    parameters = ServerParameters(policy_kind='lerobot', policy_path=str(folder), **(said | more))
    return examine_policy(parameters, runs=2)


@pytest.fixture
def copied(tmp_path):
    return shutil.copytree(folder_of('act'), tmp_path / 'act')


def test_a_whole_policy_is_well():
    folder = folder_of('act')
    assert detect_kind(str(folder)) == 'lerobot'
    found = examined(folder)
    assert {finding.verdict for finding in found.findings} == {FindingLevel.OK}
    assert 'act, chunk_stateless' in by_name(found.findings)['classified'].found
    assert by_name(found.findings)['gives'].found.startswith('chunks of 16 rows of 6 actions')


def test_missing_statistics_are_found(copied):
    """LeRobot itself would pass the values by, unscaled."""
    file = copied / 'policy_preprocessor.json'
    pipeline = json.loads(file.read_text())
    for step in pipeline['steps']:
        step.pop('state_file', None)
    file.write_text(json.dumps(pipeline))
    finding = by_name(examined(copied).findings)['statistics']
    assert finding.verdict is FindingLevel.FAILURE
    assert 'has no statistics' in finding.found


@pytest.mark.parametrize(
    ('more', 'text'),
    [({'trained_fps': 0.0}, 'trained_fps must be set'), ({'state_names': NAMES[:2]}, 'state')],
)
def test_what_the_files_do_not_hold_must_be_given(more, text):
    (finding,) = examined(folder_of('act'), **more).findings
    assert finding.verdict is FindingLevel.FAILURE
    assert text in finding.found


def test_weights_that_are_gone_are_told(copied):
    (copied / 'model.safetensors').unlink()
    (finding,) = examined(copied).findings
    assert 'model.safetensors is missing' in finding.found
