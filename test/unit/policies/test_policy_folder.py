# SPDX-License-Identifier: Apache-2.0
"""Policy folders that name files of this machine: none of them is opened."""

from __future__ import annotations

import os
from pathlib import Path
import shutil
import socket

import pytest
from support.paths import REPOSITORY

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.files.policy_folder import check_folder
from lerobot_serve.policies.kind_detection import detect_kind

SHIPPED = REPOSITORY / 'config' / 'policies' / 'reach'


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / 'secret').write_text('{}')
    return Path(shutil.copytree(SHIPPED, tmp_path / 'reach'))


def linked(folder: Path, name: str, target: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


# the first never ends, the second is another file of this machine
@pytest.mark.parametrize('target', ['/proc/kmsg', '../secret', '/dev/zero', '/nowhere'])
@pytest.mark.parametrize('name', ['policy.json', 'model.safetensors', 'README.md'])
def test_a_link_out_of_the_folder_is_refused(folder, name, target):
    linked(folder, name, target)
    with pytest.raises(PolicyError, match='outside of its folder'):
        detect_kind(str(folder))


def test_a_folder_behind_a_link_is_refused(folder, tmp_path):
    (tmp_path / 'elsewhere').mkdir()
    (folder / 'meta').symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(PolicyError, match='outside of its folder'):
        detect_kind(str(folder))
    (folder / 'meta').unlink()
    (folder / 'meta').mkdir()
    linked(folder / 'meta', 'info.json', '/etc/hostname')
    with pytest.raises(PolicyError, match='outside of its folder'):
        detect_kind(str(folder))


def test_pipes_and_sockets_are_refused(folder):
    (folder / 'policy.json').unlink()
    os.mkfifo(folder / 'policy.json')
    with pytest.raises(PolicyError, match='is a device or a pipe'):
        detect_kind(str(folder))
    os.unlink(folder / 'policy.json')
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / 'policy.json'))
        with pytest.raises(PolicyError, match='is a device or a pipe'):
            detect_kind(str(folder))


@pytest.mark.parametrize('kind', ['builtin', 'exported', 'lerobot'])
def test_each_kind_looks_at_its_folder_when_its_kind_is_given(folder, kind):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from lerobot_serve.policies.registry import load

    linked(folder, 'policy.json', '/proc/kmsg')
    with pytest.raises(PolicyError, match='outside of its folder'):
        load(kind, LoadOptions(str(folder)))


def test_links_within_the_folder_and_of_the_cache_of_the_hub_are_followed(folder, tmp_path):
    (folder / 'policy.json').rename(folder / 'real.json')
    linked(folder, 'policy.json', 'real.json')
    assert detect_kind(str(folder)) == 'builtin'
    repository = tmp_path / 'models--user--reach'
    snapshot = repository / 'snapshots' / ('0' * 40)
    snapshot.mkdir(parents=True)
    (repository / 'blobs').mkdir()
    shutil.copy(SHIPPED / 'policy.json', repository / 'blobs' / 'a')
    linked(snapshot, 'policy.json', '../../blobs/a')
    assert detect_kind(str(snapshot)) == 'builtin'
    linked(snapshot, 'policy.json', '../../../secret')
    with pytest.raises(PolicyError, match='outside of its folder'):
        detect_kind(str(snapshot))


def test_the_files_of_an_installed_package_may_be_links(folder, tmp_path, monkeypatch):
    linked(folder, 'policy.json', str(SHIPPED / 'policy.json'))
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path))
    assert detect_kind(str(folder)) == 'builtin'
    monkeypatch.setenv('AMENT_PREFIX_PATH', '')
    with pytest.raises(PolicyError, match='outside of its folder'):
        detect_kind(str(folder))


def test_the_number_of_files_is_bounded(tmp_path, monkeypatch):
    for number in range(3):
        (tmp_path / str(number)).touch()
    check_folder(tmp_path)
    monkeypatch.setattr('lerobot_serve.policies.files.policy_folder.ENTRY_LIMIT', 2)
    with pytest.raises(PolicyError, match='holds 3 files, at most 2'):
        check_folder(tmp_path)
