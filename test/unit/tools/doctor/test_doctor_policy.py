# SPDX-License-Identifier: Apache-2.0
"""What the doctor says of policy directories, of robot files, and of both together."""

from __future__ import annotations

from importlib.util import find_spec
import json
from pathlib import Path
import shutil

import pytest
from support.edge.robot_rig import (
    ARM,
    BASE,
    changed,
    FRONT_PATH,
    PAN_PATH,
    REMOVED,
    ROBOTS,
    SIM_ARM,
)
from support.paths import REPOSITORY
from support.replacing import replace
from support.tools.findings import by_name, listed, wrong
import yaml

from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.edge.robot.file import load, parse
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription, PolicyError
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import Checkpoint
from lerobot_serve.policies.registry import detect_kind
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.machine import check_capacity, check_forward_time
from lerobot_serve.tools.doctor.policy import (
    examine_policy,
    is_exclusive,
    PolicyExamination,
    with_robot_names,
)
from lerobot_serve.tools.doctor.robot import (
    check_agreement,
    check_limits,
    check_robot_file,
    EXAMPLES_OF,
)

REACH = REPOSITORY / 'config' / 'policies' / 'reach'
FEATURES = {
    'input_features': {'observation.state': {'type': 'STATE', 'shape': [6]}},
    'output_features': {'action': {'type': 'ACTION', 'shape': [6]}},
}
NULL = ServerParameters(policy_kind='null', policy_path='joints=6,chunk=30,cameras=,fps=30')
ROBOT = load(SIM_ARM)
RUNS = 8
TORCH = pytest.mark.skipif(
    find_spec('torch') is None, reason='torch is not installed (TORCH=none)'
)


def examined(kind: str, path: object, **more: object) -> PolicyExamination:
    return examine_policy(
        ServerParameters(policy_kind=kind, policy_path=str(path), **more), runs=RUNS
    )


def test_a_policy_is_told_whole():
    found = examine_policy(NULL, runs=RUNS)
    assert wrong(found.findings) == []
    assert list(by_name(found.findings)) == [
        'loads',
        'classified',
        'gives',
        'statistics',
        'fingerprint',
        'warm-up',
        'memory',
    ]
    assert 'chunk_stateless' in by_name(found.findings)['classified'].found
    assert len(found.forward_ms) == RUNS
    assert not is_exclusive(found.served)
    pace = found.pace(None)
    assert (pace.fps, pace.chunk_size, pace.runs) == (30, 30, RUNS)
    assert 0 < pace.p50_ms <= pace.p99_ms
    assert found.pace(replace(ROBOT, fps=50.0)).fps == 50
    assert check_forward_time(pace)
    assert check_capacity(pace, exclusive=False, network_s=0.01)


def test_a_hidden_state_is_classified():
    found = examined('recurrent', NULL.policy_path)
    assert 'recurrent' in by_name(found.findings)['classified'].found


def test_a_slow_policy_is_measured_for_a_limited_time():
    seconds = iter(range(1000))
    found = examine_policy(NULL, runs=500, limit_s=20.0, clock=lambda: float(next(seconds)))
    assert 5 <= len(found.forward_ms) <= 30


@pytest.mark.parametrize(
    ('kind', 'path', 'text'),
    [
        ('null', 'joints=many', 'joints'),
        ('nonsense', '', "no policy kind 'nonsense'"),
        pytest.param('lerobot', '/no/such/place', 'is not a directory', marks=TORCH),
    ],
)
def test_what_cannot_be_loaded_is_one_failure_with_its_remedy(kind, path, text):
    found = examined(kind, path)
    (finding,) = found.findings
    assert finding.verdict is FindingLevel.FAILURE
    assert text in finding.found
    assert 'docs/policy_server.md' in finding.remedy
    assert found.pace(None) is None


def test_code_of_another_package_may_raise_anything(monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError('on fire')

    monkeypatch.setattr('lerobot_serve.server.inference.policy_loading.load_worker', broken)
    (finding,) = examine_policy(NULL).findings
    assert finding.verdict is FindingLevel.FAILURE
    assert finding.found == 'RuntimeError: on fire'


def test_the_reaching_policy_is_well():
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    assert detect_kind(str(REACH)) == 'builtin'
    found = examined('builtin', REACH)
    assert wrong(found.findings) == []
    assert by_name(found.findings)['fingerprint'].found.startswith('reach@')


@pytest.mark.parametrize(
    ('damage', 'text'),
    [
        (lambda folder: (folder / 'model.safetensors').unlink(), 'model.safetensors is missing'),
        (lambda folder: (folder / 'model.safetensors').write_bytes(b'x' * 100), 'model'),
    ],
)
def test_a_damaged_reaching_policy_is_refused(tmp_path, damage, text):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    folder = Path(shutil.copytree(REACH, tmp_path / 'reach'))
    damage(folder)
    assert detect_kind(str(folder)) == 'builtin'
    (finding,) = examined('builtin', folder).findings
    assert finding.verdict is FindingLevel.FAILURE
    assert text in finding.found


def test_missing_statistics_are_a_failure_of_their_own(tmp_path):
    """Everything else of the policy is told all the same."""
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from support.policies.exported_rig import exported, SIDECAR, STATISTICS

    from lerobot_serve.policies.exported.export import write

    write(tmp_path, exported(), SIDECAR, STATISTICS)
    assert detect_kind(str(tmp_path)) == 'exported'
    assert wrong(examined('exported', tmp_path).findings) == []
    (tmp_path / 'statistics.safetensors').unlink()
    found = examined('exported', tmp_path)
    assert wrong(found.findings) == ['statistics']
    finding = by_name(found.findings)['statistics']
    assert finding.verdict is FindingLevel.FAILURE
    assert 'lacks state.mean' in finding.found
    assert 'allow_missing_statistics=true' in finding.remedy
    assert found.forward_ms
    meant = examined('exported', tmp_path, allow_missing_statistics=True)
    assert wrong(meant.findings) == ['note']


@pytest.mark.parametrize(
    ('file', 'content', 'kind'),
    [
        ('policy.json', {'kind': 'builtin.reach'}, 'builtin'),
        ('policy.json', {'kind': 'exported'}, 'exported'),
        ('config.json', {'type': 'act'}, 'lerobot'),
        ('adapter_config.json', {}, 'lerobot'),
    ],
)
def test_the_kind_is_found_out(tmp_path, file, content, kind):
    (tmp_path / file).write_text(json.dumps(content))
    assert detect_kind(str(tmp_path)) == kind


def test_a_checkpoint_beside_is_named(tmp_path):
    with pytest.raises(PolicyError, match='give the directory that holds one'):
        detect_kind(str(tmp_path))
    inner = tmp_path / 'checkpoints' / 'last' / 'pretrained_model'
    inner.mkdir(parents=True)
    (inner / 'config.json').write_text('{}')
    with pytest.raises(PolicyError, match=f'give {inner}'):
        detect_kind(str(tmp_path))


@pytest.mark.parametrize('path', ['', '/no/such/place'])
def test_what_is_no_directory_is_told(path):
    with pytest.raises(PolicyError, match='is not a directory'):
        detect_kind(path)


def test_names_that_no_file_holds_are_taken_from_the_robot_and_not_compared(monkeypatch):
    folder = Checkpoint(Path('/nowhere'), 'act', FEATURES, (), ())
    monkeypatch.setattr('lerobot_serve.tools.doctor.policy.read_checkpoint', lambda _: folder)
    bare = ServerParameters(policy_kind='lerobot')
    parameters, taken = with_robot_names(ROBOT, bare)
    assert parameters.state_names == ROBOT.state_names
    assert parameters.action_names == ROBOT.action_names
    assert parameters.trained_fps == ROBOT.fps
    assert taken == ('state_names', 'action_names', 'trained_fps')
    given = replace(bare, state_names=('a',), action_names=('b',), trained_fps=5.0)
    assert with_robot_names(ROBOT, given) == (given, ())
    assert with_robot_names(ROBOT, NULL) == (NULL, ())
    assert with_robot_names(None, bare) == (bare, ())


def test_a_folder_that_cannot_be_read_takes_no_names():
    bare = ServerParameters(policy_kind='lerobot')
    assert with_robot_names(ROBOT, bare) == (bare, ())


LIMITS = tuple((action.low, action.high) for action in ROBOT.actions)
RULES = ServerParameters()
SERVED = PolicyDescription(
    'act',
    'act@0123',
    ROBOT.state_names,
    ROBOT.action_names,
    tuple(PolicyCamera(name, 48, 64) for name in ROBOT.camera_names),
    50,
    30.0,
    action_range=ActionRange(
        tuple(action.low for action in ROBOT.actions),
        tuple(action.high for action in ROBOT.actions),
    ),
)


@pytest.mark.parametrize('file', sorted(ROBOTS.glob('*.yaml')), ids=lambda file: file.stem)
def test_the_robots_that_ship_are_well(file):
    robot, findings = check_robot_file(str(file))
    assert robot.name == file.stem
    assert wrong(findings) == []
    assert {'file', 'joint names', 'limits'} <= by_name(findings).keys()


def test_a_mistake_in_the_file_is_told_as_the_edge_tells_it(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_text(yaml.safe_dump(changed(f'{PAN_PATH}/min', REMOVED)))
    robot, (finding,) = check_robot_file(str(file))
    assert robot is None
    assert finding.verdict is FindingLevel.FAILURE
    assert str(file) in finding.found and 'shoulder_pan.pos: min is missing' in finding.found
    assert 'config/robots' in finding.remedy


@pytest.mark.parametrize('content', [None, b'\xff\xfe', b': : :', b'', b'- 1'])
def test_what_is_no_robot_file_is_told(tmp_path, content):
    file = tmp_path / 'robot.yaml'
    if content is not None:
        file.write_bytes(content)
    robot, (finding,) = check_robot_file(str(file))
    assert robot is None
    assert finding.verdict is FindingLevel.FAILURE
    assert str(file) in finding.found


def test_a_directory_is_no_robot_file(tmp_path):
    assert check_robot_file(str(tmp_path))[1][0].verdict is FindingLevel.FAILURE


@pytest.mark.golden
def test_what_is_said_of_limits(golden):
    pan, *others = ROBOT.actions
    robots = {
        'in degrees': replace(ROBOT, actions=(replace(pan, high=90.0), *others)),
        'that limit nothing': parse(changed(f'{PAN_PATH}/max_step', 3.8), 'f'),
        'that just limit': parse(changed(f'{PAN_PATH}/max_step', 3.7), 'f'),
        # who pushes with all force is told, and no trouble
        'of an arm': parse(ARM, 'f'),
        'of a base': parse(BASE, 'f'),
    }
    texts = [f'{name}\n{listed(check_limits(robot))}' for name, robot in robots.items()]
    golden.holds('doctor/limits.txt', '\n'.join(texts))


def ranged(factor: float) -> ActionRange:
    """Return the range of a policy whose unit is this much smaller than that of the limits."""
    return ActionRange(
        *(tuple(factor * each for each in end) for end in zip(*LIMITS, strict=True))
    )


STRICT = replace(RULES, require_trained_fps=True)
EXTRA = PolicyCamera('observation.images.top', 48, 64)
# what the policy has in the place of what fits, and the parameters that came from the robot file
AGREEMENTS = {
    'they agree': {},
    'limits in degrees': {'action_range': ranged(57.3)},
    'beyond the limits': {'action_range': ranged(2.0)},
    'within the limits': {'action_range': ranged(1.0)},
    'no range': {'action_range': None},
    'another order': {'action_names': ROBOT.action_names[::-1]},
    'other names': {'state_names': ('a', 'b')},
    'a camera more': {'cameras': (*SERVED.cameras, EXTRA)},
    'a camera less': {'cameras': SERVED.cameras[:1]},
    'another rate': {'trained_fps': 50.0},
    'no rate': {'trained_fps': 0.0},
}
NOTHING_FITS = {'action_names': ('a',), 'state_names': ('b',), 'cameras': (), 'trained_fps': 1.0}


@pytest.mark.golden
def test_what_a_server_would_refuse_or_warn_of_is_found(golden):
    found = {
        name: check_agreement(ROBOT, replace(SERVED, **changes), RULES)
        for name, changes in AGREEMENTS.items()
    }
    served = replace(SERVED, **NOTHING_FITS)
    found['all differs, and the rate is required'] = check_agreement(ROBOT, served, STRICT)
    for name in EXAMPLES_OF:
        # a robot file is not compared with itself
        found[f'{name} of the robot file'] = check_agreement(ROBOT, SERVED, RULES, (name,))
    text = '\n'.join(f'{name}\n{listed(findings)}' for name, findings in found.items())
    golden.holds('doctor/agreement.txt', text)


def test_a_camera_under_another_name_may_be_renamed():
    renamed = parse(changed('rename_map', {FRONT_PATH.partition('/')[2]: 'top'}), 'f')
    served = replace(SERVED, cameras=(PolicyCamera('top', 48, 64), SERVED.cameras[1]))
    assert wrong(check_agreement(renamed, served, RULES)) == []
