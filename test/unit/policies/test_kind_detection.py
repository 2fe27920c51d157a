# SPDX-License-Identifier: Apache-2.0
"""The kind of a policy is found out from its files, and no folder in use is written to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.policy_folder import make_empty_folder
from lerobot_serve.policies.kind_detection import detect_kind
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
