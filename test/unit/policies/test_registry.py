# SPDX-License-Identifier: Apache-2.0
"""The registry: a policy is found by its kind, and what is missing is said with its remedy."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import numpy as np
import pytest
from support.replacing import replace

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyCamera, PolicyError, PolicyRequest
from lerobot_serve.policies.synthetic import null, recurrent
from lerobot_serve.policies.synthetic.null import DEFAULT

SHAPE = 'joints=2,chunk=3,cameras=front:48x64+wrist:24x32,fps=12.5'


@pytest.fixture
def installed(monkeypatch):
    """Return a function that makes the given kinds the only ones."""

    def install(**targets: str) -> None:
        entries = [EntryPoint(kind, target, registry.GROUP) for kind, target in targets.items()]
        monkeypatch.setattr(registry, 'entry_points', lambda group: entries)

    return install


def test_the_kinds_of_this_package_are_installed():
    assert {'builtin', 'null'} <= set(registry.installed_kinds())


def test_an_unknown_kind_is_refused_with_those_there_are(installed):
    installed(zebra='x:load', act='x:load')
    with pytest.raises(PolicyError) as refused:
        registry.load('pi0', LoadOptions())
    assert str(refused.value) == "there is no policy kind 'pi0'; installed are act, zebra"
    installed()
    with pytest.raises(PolicyError, match='installed are none'):
        registry.load('pi0', LoadOptions())


def test_a_package_that_is_missing_is_named_with_the_remedy(installed):
    installed(broken='a_package_that_nobody_has:load')
    with pytest.raises(PolicyError) as refused:
        registry.load('broken', LoadOptions())
    assert "policy kind 'broken'" in str(refused.value)
    assert 'a_package_that_nobody_has' in str(refused.value)
    assert 'pip install' in str(refused.value)


def raises(error: BaseException):
    def load(loading):
        raise error

    return load


def test_whatever_the_loader_of_another_package_raises_is_one_line(installed, monkeypatch):
    installed(other='lerobot_serve.policies.synthetic.null:load')
    for error, said in (
        (KeyError('weights'), "KeyError: 'weights'"),
        (RuntimeError('two\nlines'), 'RuntimeError: two lines'),
        (ImportError(), 'ImportError'),
    ):
        monkeypatch.setattr(null, 'load', raises(error))
        with pytest.raises(PolicyError) as refused:
            registry.load('other', LoadOptions('some/path'))
        assert str(refused.value) == f"policy kind 'other' cannot load 'some/path': {said}"
        assert refused.value.__cause__ is error


def test_what_a_loader_itself_refuses_is_passed_on(installed, monkeypatch):
    refusal = PolicyError('no such folder')
    monkeypatch.setattr(null, 'load', raises(refusal))
    installed(other='lerobot_serve.policies.synthetic.null:load')
    with pytest.raises(PolicyError) as refused:
        registry.load('other', LoadOptions('some/path'))
    assert refused.value is refusal


def test_a_package_without_its_loader_is_named(installed):
    installed(broken='lerobot_serve.policies.synthetic.null:not_there')
    with pytest.raises(PolicyError, match=r"kind 'broken' cannot be used here: AttributeError: "):
        registry.load('broken', LoadOptions())


def test_the_loader_is_given_all_that_the_operator_said(installed, monkeypatch):
    calls = []
    monkeypatch.setattr(null, 'load', calls.append)
    installed(null='lerobot_serve.policies.synthetic.null:load')
    loading = LoadOptions('some/path', 'cuda:1', 'mine', state_limit=3)
    registry.load('null', loading)
    assert calls == [loading]


def test_a_null_policy_has_the_shape_of_its_path():
    described = registry.load('null', LoadOptions(SHAPE)).describe()
    assert described.action_names == described.state_names == ('joint_0.pos', 'joint_1.pos')
    assert described.cameras == (
        PolicyCamera('observation.images.front', 48, 64),
        PolicyCamera('observation.images.wrist', 24, 32),
    )
    assert (described.chunk_size, described.trained_fps) == (3, 12.5)
    assert described.fingerprint.startswith('null@')


def test_another_shape_is_another_policy():
    default = null.load(LoadOptions()).describe()
    other = null.load(LoadOptions(DEFAULT.replace('chunk=100', 'chunk=99'))).describe()
    assert default.fingerprint != other.fingerprint
    assert replace(default, fingerprint='', chunk_size=99) == replace(other, fingerprint='')


def test_a_null_policy_begins_where_the_robot_is_and_moves_gently():
    policy = null.load(LoadOptions(SHAPE))
    states = [np.array([[9, 9], [1, 2]], np.float32), np.zeros((1, 2), np.float32)]
    first, second = policy.predict([PolicyRequest('s', state) for state in states])
    assert first.robot.shape == second.robot.shape == (3, 2)
    assert first.robot.dtype == np.float32
    assert first.robot[0].tolist() == [1, 2]
    assert (np.diff(first.robot, axis=0) > 0).all()
    assert second.robot[-1] == pytest.approx([0.01, 0.01])
    assert np.array_equal(first.model, first.robot)


@pytest.mark.parametrize(
    'path',
    [
        'joints=6',
        'joints=x,chunk=100,cameras=,fps=30',
        'joints=6,chunk=100,cameras=front,fps=30',
        'joints=6,chunk=100,cameras=front:48x64+,fps=30 ',
        'joints=6,chunk=-1,cameras=,fps=30',
        'joints=6,chunk=100,cameras=,fps=nan',
        '/some/folder',
    ],
)
def test_a_path_that_is_no_shape_is_refused_with_an_example(path):
    with pytest.raises(PolicyError) as refused:
        null.load(LoadOptions(path))
    assert repr(path) in str(refused.value)
    assert repr(DEFAULT) in str(refused.value)


@pytest.mark.parametrize('nothing', ['joints=6', 'chunk=100', 'fps=30'])
def test_a_shape_of_nothing_is_refused(nothing):
    path = DEFAULT.replace(nothing, f'{nothing.partition("=")[0]}=0')
    with pytest.raises(PolicyError, match=f'must be above 0, got {path!r}'):
        null.load(LoadOptions(path))


OWN_NAMES = ('joint_0.pos', 'joint_1.pos')


@pytest.mark.parametrize('kind', [null, recurrent])
def test_what_the_operator_says_rightly_is_fine(kind):
    said = LoadOptions(SHAPE, state_names=OWN_NAMES, action_names=OWN_NAMES, trained_fps=12.5)
    assert kind.load(said).describe() == kind.load(LoadOptions(SHAPE)).describe()


@pytest.mark.parametrize('kind', [null, recurrent])
@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        ({'state_names': ('a', 'b')}, "state_names is set to ['a', 'b'], but"),
        ({'action_names': OWN_NAMES[::-1]}, "policy has ['joint_0.pos', 'joint_1.pos']; leave"),
        ({'trained_fps': 30.0}, 'trained_fps is set to 30, but'),
        ({'device': 'cuda:0'}, "only on the device 'cpu', got 'cuda:0'"),
        ({'cpu_threads': 2}, 'leave cpu_threads at 0, got 2'),
    ],
)
def test_what_the_operator_says_wrongly_is_refused(kind, wrong, said):
    with pytest.raises(PolicyError) as refused:
        kind.load(LoadOptions(SHAPE, **wrong))
    assert said in str(refused.value)


@pytest.mark.parametrize('kind', [null, recurrent])
def test_a_name_stands_in_the_fingerprint(kind):
    own, named = (
        kind.load(LoadOptions(name=name)).describe().fingerprint for name in ('', 'mine')
    )
    assert named == f'mine@{own.partition("@")[2]}'
