# SPDX-License-Identifier: Apache-2.0
"""
The id of a version is the fingerprint that a policy server shows: of the folder, of the version,
and of a version that was fetched.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
import shutil

import pytest
from support.paths import REPOSITORY
from support.server.fake_policy import FakePolicy
from support.versions.version_rig import check_whole, CREATED, damage, rewritten_manifest

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import policy_id
from lerobot_serve.policies.lerobot.hub import HubPolicy
from lerobot_serve.policies.registry import OWN_KINDS
from lerobot_serve.tools.versions import identify, IDENTITIES, why_not_checked
from lerobot_serve.versions.errors import DamagedVersion, PublishError, VersionInUse
from lerobot_serve.versions.manifest import Manifest, read_manifest
from lerobot_serve.versions.publishing import Details, publish
from lerobot_serve.versions.store import VersionStore
from lerobot_serve.versions.transfer.fetching import Fetch
from lerobot_serve.versions.transfer.source import FolderSource

REACH = REPOSITORY / 'config' / 'policies' / 'reach'
TDMPC = REPOSITORY / 'test' / 'golden' / 'lerobot-0.4.4-tdmpc'
COMMIT = 'c' * 40
NAMES = tuple(f'joint_{number}.pos' for number in range(6))


@pytest.fixture
def store(tmp_path):
    return VersionStore.make(tmp_path / 'store')


def published(store: VersionStore, folder: Path, name: str = '') -> Manifest:
    def named(given: Path):
        return identify(given, name if given == folder else '')

    return publish(store, folder, named, Details(CREATED)).manifest


def loaded(folder: Path, **given: object):
    """Load a folder as a policy server does."""
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from lerobot_serve.server.inference.policy_loading import load_worker
    from lerobot_serve.server.observability.server_statistics import ServerStatistics
    from lerobot_serve.server.parameters import ServerParameters

    parameters = ServerParameters(policy_path=str(folder), **given)
    return load_worker(parameters, '', ServerStatistics())


def served(folder: Path, **given: object) -> str:
    """Return the fingerprint that a policy server shows for a folder."""
    with contextlib.closing(loaded(folder, **given)) as worker:
        return worker.description.fingerprint


def test_each_kind_that_a_folder_can_have_is_identified():
    assert set(IDENTITIES) == {'lerobot', *OWN_KINDS.values()}


def test_a_version_of_another_packages_kind_is_checked_and_kept_while_it_is_served(
    store, monkeypatch
):
    version_id = published(store, REACH).id
    monkeypatch.setattr(registry, 'load', lambda kind, options: FakePolicy())
    worker = loaded(store.path(version_id), policy_kind='plain')
    with pytest.raises(VersionInUse):
        store.delete(version_id)
    worker.close()
    damage(store, version_id)
    with pytest.raises(PolicyError, match='is damaged'):
        loaded(store.path(version_id), policy_kind='plain')


@pytest.mark.parametrize('name', ['', 'better'])
def test_a_builtin_policy_is_served_as_its_version_says(store, name):
    manifest = published(store, REACH, name)
    assert (manifest.policy_kind, manifest.name) == ('builtin', name or 'reach')
    assert manifest.id == served(REACH, policy_name=name)
    assert manifest.id == served(store.path(manifest.id))
    # what an operator says comes first, as for every policy
    assert served(store.path(manifest.id), policy_name='mine').startswith('mine@')


@pytest.fixture
def tdmpc(tmp_path):
    folder = tmp_path / 'tdmpc_arm' / 'checkpoints' / '020000' / 'pretrained_model'
    shutil.copytree(TDMPC, folder)
    return folder


@pytest.mark.parametrize('name', ['', 'better'])
def test_a_checkpoint_is_served_as_its_version_says(store, tdmpc, name):
    pytest.importorskip('lerobot', reason='LeRobot is not installed')
    given = {'state_names': NAMES, 'action_names': NAMES, 'trained_fps': 30.0}
    manifest = published(store, tdmpc, name)
    assert (manifest.policy_kind, manifest.name) == ('lerobot', name or 'tdmpc_arm-020000')
    assert manifest.id == served(tdmpc, policy_name=name, **given)
    assert manifest.id == served(store.path(manifest.id), **given)


def test_a_checkpoint_keeps_its_name_in_every_store(store, tdmpc, tmp_path):
    """Neither torch nor LeRobot."""
    manifest = published(store, tdmpc)
    other = VersionStore.make(tmp_path / 'other')
    Fetch(other, FolderSource(store.folder)).run(manifest.id)
    for folder in (tdmpc, store.path(manifest.id), other.path(manifest.id)):
        assert identify(folder).fingerprint == manifest.id
        assert policy_id(LoadOptions(str(folder))) == 'tdmpc_arm-020000'
    shutil.copytree(other.path(manifest.id), tmp_path / 'renamed')
    assert identify(tmp_path / 'renamed').fingerprint == manifest.id


@pytest.mark.slow
@pytest.mark.parametrize('onnx', [False, True])
def test_an_exported_policy_is_served_as_its_version_says(store, tmp_path, onnx):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from support.policies.exported_rig import as_onnx, exported, write_policy

    folder = Path(write_policy(tmp_path / 'program', as_onnx() if onnx else exported()))
    manifest = published(store, folder)
    assert manifest.policy_kind == 'exported'
    assert manifest.id == served(folder)
    assert manifest.id == served(store.path(manifest.id))


def test_a_policy_of_the_hub_stays_one(store, tmp_path):
    snapshot = tmp_path / 'models--user--arm' / 'snapshots' / COMMIT
    shutil.copytree(TDMPC, snapshot)
    manifest = published(store, snapshot)
    assert manifest.hub == str(HubPolicy('user/arm', COMMIT))
    assert manifest.name == f'arm-{COMMIT[:12]}'
    copy = tmp_path / 'copy'
    shutil.copytree(TDMPC, copy)
    # the commit is part of the fingerprint
    assert identify(copy, manifest.name).fingerprint != manifest.id
    assert identify(store.path(manifest.id)).fingerprint == manifest.id


def test_what_is_no_policy_is_refused(tmp_path):
    with pytest.raises(PublishError, match='holds neither'):
        identify(tmp_path)
    with pytest.raises(PublishError, match='is not a directory'):
        identify(tmp_path / 'missing')


def test_a_damaged_manifest_is_an_error_of_the_policy(store, tdmpc):
    manifest = published(store, tdmpc)
    rewritten_manifest(store, manifest.id, '"note"', '"not"')
    with pytest.raises(PolicyError, match="unknown field 'not'"):
        policy_id(LoadOptions(str(store.path(manifest.id))))


def test_files_of_another_policy_under_a_good_manifest_are_refused(store, tdmpc):
    """All hashes are right, but the id is that of other files."""
    manifest = published(store, tdmpc)
    assert why_not_checked(store.path(manifest.id), manifest) == ''
    other = f'{manifest.name}@{"0" * 16}'
    folder = store.path(other)
    shutil.copytree(store.path(manifest.id), folder)
    rewritten_manifest(store, other, manifest.id, other)
    with pytest.raises(DamagedVersion, match='its manifest is that of another policy'):
        why_not_checked(folder, read_manifest(folder))


def test_a_tokenizer_that_is_not_here_leaves_the_fingerprint_open(store, tdmpc):
    manifest = published(store, tdmpc)
    folder = store.path(manifest.id)
    file = folder / 'policy_preprocessor.json'
    steps = json.loads(file.read_text())
    steps['steps'].append(
        {'registry_name': 'tokenizer_processor', 'config': {'tokenizer_name': 'user/missing'}}
    )
    file.chmod(0o644)
    file.write_text(json.dumps(steps))
    assert why_not_checked(folder, manifest)


def test_a_damaged_version_is_not_loaded_and_can_be_deleted(store):
    manifest = published(store, REACH)
    damage(store, manifest.id)
    with pytest.raises(PolicyError, match=r'is damaged: .*versions delete'):
        served(store.path(manifest.id))
    store.delete(manifest.id)


@pytest.mark.parametrize('what', ['missing', 'short', 'added', 'manifest', 'link'])
def test_each_damage_is_found_before_the_load(store, tmp_path, what):
    manifest = published(store, REACH)
    folder = store.path(manifest.id)
    file = folder / 'model.safetensors'
    file.chmod(0o644)
    if what == 'missing':
        file.unlink()
    elif what == 'short':
        file.write_bytes(file.read_bytes()[:-1])
    elif what == 'added':
        (folder / 'config.json').write_text('{"type": "act"}')
    elif what == 'link':
        file.rename(tmp_path / 'weights')
        file.symlink_to(tmp_path / 'weights')
    else:
        rewritten_manifest(store, manifest.id, '"format_version": 1', '"format_version": 9')
    with pytest.raises(PolicyError):
        served(folder)


def test_a_worker_holds_its_version_until_it_closes(store):
    manifest = published(store, REACH)
    worker = loaded(store.path(manifest.id))
    with pytest.raises(VersionInUse):
        store.delete(manifest.id)
    assert check_whole(store) == [manifest.id]
    worker.close()
    store.delete(manifest.id)
    # a load that fails holds nothing
    again = published(store, REACH)
    with pytest.raises(PolicyError):
        loaded(store.path(again.id), device='none')
    store.delete(again.id)
