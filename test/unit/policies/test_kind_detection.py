# SPDX-License-Identifier: Apache-2.0
"""Kind and fingerprint of a policy come from its files; no other file of the machine is opened."""

from __future__ import annotations

import json
import os
from pathlib import Path
import re
import shutil
import socket
import subprocess
import sys
import tempfile

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.paths import REPOSITORY

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.files import policy_folder as module
from lerobot_serve.policies.files.policy_folder import check_folder, fingerprint, make_empty_folder
from lerobot_serve.policies.registry import detect_kind
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters

REACH = REPOSITORY / 'config' / 'policies' / 'reach'
FILES = {
    'policy.json': {'kind': 'exported'},
    'config.json': {'type': 'act'},
    'adapter_config.json': {},
}


@pytest.mark.parametrize(
    ('files', 'said'),
    [
        ([], r'holds neither .* it is empty; give the directory that holds one'),
        (['README.md'], r'holds neither .* but README.md; '),
        (['policy.json', 'config.json'], r'holds both policy.json \(kind exported\) and '),
        (['policy.json', 'adapter_config.json'], r'holds both '),
    ],
)
def test_what_is_not_clear_is_said(tmp_path, files, said):
    for name in files:
        (tmp_path / name).write_text(json.dumps(FILES.get(name)))
    with pytest.raises(PolicyError, match=said):
        detect_kind(str(tmp_path))


@pytest.mark.parametrize('content', [[], {}, {'kind': 'act'}, {'kind': ['exported']}, {'kind': 1}])
def test_a_sidecar_of_no_kind_is_said(tmp_path, content):
    (tmp_path / 'policy.json').write_text(json.dumps(content))
    with pytest.raises(PolicyError, match=r"kind must be 'builtin.reach' or 'exported', got "):
        detect_kind(str(tmp_path))


def test_a_server_finds_the_kind_out():
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    parameters = ServerParameters(policy_path=str(REACH))
    made = policy_loading.load_worker(parameters, '', ServerStatistics())
    try:
        assert made.description.policy_type == 'builtin.reach'
    finally:
        made.close()


def test_a_server_without_a_policy_says_so():
    with pytest.raises(PolicyError, match='policy_path is empty'):
        policy_loading.load_worker(ServerParameters(), '', ServerStatistics())


def test_a_folder_in_use_is_not_written_to(tmp_path):
    make_empty_folder(tmp_path / 'new' / 'policy')
    make_empty_folder(tmp_path / 'new' / 'policy')
    (tmp_path / 'new' / 'policy' / 'model.safetensors').write_bytes(b'weights')
    with pytest.raises(PolicyError, match=r'is not empty \(it holds model.safetensors\)'):
        make_empty_folder(tmp_path / 'new' / 'policy')
    with pytest.raises(PolicyError, match='cannot be written to'):
        make_empty_folder(tmp_path / 'new' / 'policy' / 'model.safetensors')


@pytest.mark.slow
def test_training_refuses_a_folder_in_use_before_it_trains(tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    (tmp_path / 'model.safetensors').write_bytes(b'weights of others')
    done = subprocess.run(
        [sys.executable, '-m', 'lerobot_serve.demo.train', 'v2', str(tmp_path)],
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'is not empty' in done.stderr
    assert (tmp_path / 'model.safetensors').read_bytes() == b'weights of others'


@pytest.mark.parametrize('kind', ['builtin', 'exported', 'lerobot', ''])
def test_no_remedy_writes_to_the_folder_that_was_given(tmp_path, kind):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    (tmp_path / 'config.json').write_text('{"type": "act"}')
    parameters = ServerParameters(policy_kind=kind, policy_path=str(tmp_path))
    with pytest.raises(PolicyError) as refusal:
        policy_loading.load_worker(parameters, '', ServerStatistics())
    text = str(refusal.value)
    for word in ('demo.train', '--local-dir', 'export '):
        assert word not in text


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


CONTENT = {'config.json': b'{}', 'model.safetensors': b'0123456789'}


def write(folder: Path, content: dict[str, bytes]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in content]


def of(folder: Path, content: dict[str, bytes]) -> str:
    return fingerprint('act', write(folder, content))


def test_it_is_the_id_and_sixteen_digits(tmp_path):
    assert re.fullmatch(r'act@[0-9a-f]{16}', of(tmp_path, CONTENT))


def test_the_id_is_part_of_it(tmp_path):
    files = write(tmp_path, CONTENT)
    assert fingerprint('act', files).split('@')[1] == fingerprint('pi0', files).split('@')[1]
    assert fingerprint('pi0', files).startswith('pi0@')


def test_neither_the_folder_nor_the_order_matters(tmp_path):
    one, other = write(tmp_path / 'a', CONTENT), write(tmp_path / 'b' / 'c', CONTENT)
    assert fingerprint('act', one) == fingerprint('act', other[::-1])


@pytest.mark.parametrize(
    'content',
    [
        {'config.json': b'{}'},
        {**CONTENT, 'more': b''},
        {'config.yaml': b'{}', 'model.safetensors': b'0123456789'},
        {'config.json': b'{}0', 'model.safetensors': b'123456789'},
        {'config.json': CONTENT['model.safetensors'], 'model.safetensors': b'{}'},
    ],
)
def test_a_file_more_or_less_another_name_or_another_border_changes_it(tmp_path, content):
    assert of(tmp_path / 'a', CONTENT) != of(tmp_path / 'b', content)


@given(st.binary(min_size=1, max_size=40), st.data())
def test_any_byte_changes_it(data, draw):
    place = draw.draw(st.integers(0, len(data) - 1))
    changed = bytearray(data)
    changed[place] ^= draw.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        before = of(Path(folder) / 'a', {'weights': data})
        assert of(Path(folder) / 'b', {'weights': data}) == before
        assert of(Path(folder) / 'b', {'weights': bytes(changed)}) != before


def test_a_file_larger_than_a_block_is_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'BLOCK_BYTES', 4)
    assert of(tmp_path / 'a', {'w': b'12345678X'}) != of(tmp_path / 'b', {'w': b'12345678Y'})


def test_a_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        fingerprint('act', [tmp_path / 'nothing'])


def test_each_block_is_followed_by_a_pause(tmp_path, monkeypatch):
    pauses = []
    monkeypatch.setattr(module, 'give_way', lambda: pauses.append(None))
    monkeypatch.setattr(module, 'BLOCK_BYTES', 4)
    whole = of(tmp_path, CONTENT)
    assert len(pauses) == sum(-(-len(data) // 4) for data in CONTENT.values())
    monkeypatch.undo()
    assert of(tmp_path, CONTENT) == whole
