# SPDX-License-Identifier: Apache-2.0
"""Policies by their id on the hub: huggingface_hub itself downloads them from a local hub."""

from __future__ import annotations

import json
import os
from pathlib import Path
import signal
import subprocess
import sys

import pytest

pytest.importorskip('huggingface_hub', reason='huggingface_hub is not installed')

from support.paths import REPOSITORY
from support.policies.fake_hub import FakeHub, Repository, repository
from support.waiting import wait_until

from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.lerobot import hardening
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (
    policy_id,
    read_checkpoint,
)
from lerobot_serve.policies.lerobot.hub import (
    commit_of,
    hub_policy,
    HubPolicy,
    local_folder,
)
from lerobot_serve.policies.lerobot.hub_download import (
    check_files,
    POLICY_FILES,
    Refused,
)
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.policy_swap import check_policy_path_change

GOLDEN = REPOSITORY / 'test' / 'golden'
OLD, NEW = '0' * 39 + '1', 'f' * 40
STATE_FILE = 'policy_preprocessor_step_0_normalizer_processor.safetensors'
FEATURES = {
    'input_features': {'observation.state': {'type': 'STATE', 'shape': [2]}},
    'output_features': {'action': {'type': 'ACTION', 'shape': [2]}},
}
STEP = {'registry_name': 'normalizer_processor', 'config': {}, 'state_file': STATE_FILE}
FILES = {
    'config.json': json.dumps({'type': 'act', **FEATURES}).encode(),
    'model.safetensors': b'weights',
    'policy_preprocessor.json': json.dumps({'steps': [STEP]}).encode(),
    'policy_postprocessor.json': b'{"steps": []}',
    STATE_FILE: b'statistics',
}
REFUSED_FILES = {
    'README.md': b'#',
    'pytorch_model.bin': b'pickle',
    'modeling_act.py': b'raise SystemExit',
    'nested/config.json': b'{}',
    'policy_preprocessor_step_0.safetensors.py': b'raise SystemExit',
    'optimizer.safetensors': b'training',
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub, and an address at which there is none."""
    for name in (
        'HF_HUB_CACHE',
        'HUGGINGFACE_HUB_CACHE',
        'HF_TOKEN',
        *hardening.OFFLINE_VARIABLES,
    ):
        monkeypatch.delenv(name, raising=False)
    # what an earlier test has set for the process
    monkeypatch.setattr(hardening, '_before', {})
    monkeypatch.setenv('HF_HOME', str(tmp_path))
    monkeypatch.setenv('HF_ENDPOINT', 'http://127.0.0.1:9')
    return tmp_path


@pytest.fixture
def hub(cache, monkeypatch):
    act = Repository(
        {OLD: FILES | REFUSED_FILES, NEW: FILES | {'model.safetensors': b'newer weights'}},
        {'main': NEW, 'v1': OLD},
    )
    empty = Repository({OLD: {'README.md': b'#'}}, {'main': OLD})
    gated = Repository({OLD: FILES}, {'main': OLD}, gated=True)
    with FakeHub({'user/act': act, 'user/empty': empty, 'user/gated': gated}) as made:
        monkeypatch.setenv('HF_ENDPOINT', made.url)
        yield made


def test_a_tag_is_downloaded_at_its_commit_without_what_is_no_policy(hub, monkeypatch):
    folder = Path(local_folder('user/act@v1'))
    assert {file.name for file in folder.iterdir()} == set(FILES)
    assert hub.downloaded == set(FILES)
    assert commit_of(folder) == HubPolicy('user/act', OLD)
    assert (folder / 'model.safetensors').read_bytes() == b'weights'
    assert policy_id(LoadOptions(path=str(folder))) == f'act-{OLD[:12]}'
    # the commit is there: the same policy without a network, but not what a name stands for
    monkeypatch.setenv('HF_ENDPOINT', 'http://127.0.0.1:9')
    assert local_folder(f'user/act@{OLD}') == str(folder)
    with pytest.raises(PolicyError, match='hf download user/act --revision v1 --local-dir act'):
        local_folder('user/act@v1')


def test_the_process_that_serves_stays_offline(hub, monkeypatch):
    for name in hardening.OFFLINE_VARIABLES:
        monkeypatch.setenv(name, '0')
    hardening.disable_network()
    folder = Path(local_folder('user/act'))
    assert (folder / 'model.safetensors').read_bytes() == b'newer weights'
    assert os.environ['HF_HUB_OFFLINE'] == '1'


def test_a_policy_of_the_hub_is_served_though_the_server_has_no_network(hub):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    pytest.importorskip('lerobot', reason='LeRobot is not installed')
    from support.policies.lerobot_rig import NAMES

    from lerobot_serve.server.inference.policy_loading import load_worker
    from lerobot_serve.server.observability.server_statistics import ServerStatistics

    hub.repositories['user/tdmpc'] = repository(GOLDEN / 'lerobot-0.4.4-tdmpc', OLD)
    hardening.disable_network()
    parameters = ServerParameters(
        policy_path='user/tdmpc', state_names=NAMES, action_names=NAMES, trained_fps=30.0
    )
    worker = load_worker(parameters, '', ServerStatistics())
    try:
        assert worker.description.fingerprint.startswith(f'tdmpc-{OLD[:12]}@')
        assert worker.description.policy_type == 'tdmpc'
    finally:
        worker.close()


@pytest.mark.parametrize(
    ('path', 'text'),
    [
        ('user/none', 'neither a folder on this machine nor a repository'),
        ('user/act@v9', "has no revision 'v9'"),
        ('user/empty', 'has no config.json; it holds no policy of LeRobot'),
        ('user/gated', 'hf auth login'),
    ],
)
def test_what_the_hub_does_not_give_is_said(hub, path, text):
    with pytest.raises(PolicyError, match=text) as refusal:
        local_folder(path)
    assert '\n' not in str(refusal.value)
    assert not hub.downloaded


@pytest.mark.parametrize(('policy_type', 'text'), [('xvla', 'cannot be served'), (3, 'no .type')])
def test_weights_that_cannot_be_served_are_not_downloaded(hub, policy_type, text):
    config = json.dumps({'type': policy_type, **FEATURES}).encode()
    files = {OLD: FILES | {'config.json': config}}
    hub.repositories['user/xvla'] = Repository(files, {'main': OLD})
    with pytest.raises(PolicyError, match=text):
        local_folder('user/xvla')
    assert hub.downloaded == {'config.json'}


def test_an_operator_who_forbids_the_network_is_obeyed(hub, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    with pytest.raises(PolicyError, match=r'cannot be reached.*give it as policy_path'):
        local_folder('user/act')
    assert not hub.paths


def test_a_download_has_a_limit(hub):
    with pytest.raises(PolicyError, match=r'not downloaded within 0\.01 s; where there is a net'):
        local_folder('user/act', limit_s=0.01)


def test_a_download_ends_with_the_server(cache):
    start = (
        'import os, subprocess, sys, time\n'
        'waiting = "from lerobot_serve.policies.lerobot import hub_download; '
        'hub_download.end_with_parent(" + str(os.getpid()) + ")"\n'
        'made = subprocess.Popen([sys.executable, "-c", waiting])\n'
        'print(made.pid, flush=True)\n'
        'time.sleep(60)'
    )
    parent = subprocess.Popen([sys.executable, '-c', start], stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        assert Path(f'/proc/{child}').exists()
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(child), 'the process that downloads ends')


def is_running(process: int) -> bool:
    """Return whether a process runs; one that nobody has waited for has ended, too."""
    try:
        return Path(f'/proc/{process}/stat').read_text().rsplit(')', 1)[1].split()[0] != 'Z'
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ('path', 'expected'),
    [
        ('user/act', HubPolicy('user/act', 'main')),
        ('user/act@v1.0', HubPolicy('user/act', 'v1.0')),
        (f'user/act@{OLD}', HubPolicy('user/act', OLD)),
        *((path, None) for path in ('', 'act', '/models/act', './user/act', 'user/act/last')),
        *((path, None) for path in ('user/act@', 'user/act@-v', '../act', 'user/act@a b')),
    ],
)
def test_what_names_a_policy_of_the_hub(path, expected):
    assert hub_policy(path) == expected


def test_a_folder_is_a_folder(tmp_path, monkeypatch):
    (tmp_path / 'user' / 'act').mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert local_folder('user/act') == 'user/act'
    assert commit_of(tmp_path / 'user' / 'act') is None


def test_the_commit_is_in_the_fingerprint(tmp_path):
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from lerobot_serve.policies.lerobot.description import policy_fingerprint

    prints = set()
    for owner, commit in (('user', OLD), ('user', NEW), ('other', OLD)):
        folder = tmp_path / f'models--{owner}--act' / 'snapshots' / commit
        folder.mkdir(parents=True)
        for name, data in FILES.items():
            (folder / name).write_bytes(data)
        options = LoadOptions(path=str(folder), name='mine')
        prints.add(policy_fingerprint(read_checkpoint(str(folder)), options))
    assert len(prints) == 3


@pytest.mark.parametrize('name', sorted(REFUSED_FILES))
def test_only_files_of_a_policy_are_wanted(name):
    assert not POLICY_FILES.fullmatch(name)


def test_a_policy_that_does_not_fit_the_disk_is_refused(cache):
    with pytest.raises(Refused, match=r'1000\.0 GB.*make room, or set HF_HOME'):
        check_files(['config.json'], 10**12)
    with pytest.raises(Refused, match='65 files of a policy, over 64'):
        check_files(['config.json'] * 65, 0)


def test_no_policy_of_the_hub_at_runtime(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    present = ServerParameters(policy_path='a', policy_root=str(tmp_path))
    with pytest.raises(ParameterError, match='is named at start, at runtime give a folder below'):
        check_policy_path_change(present, ServerParameters(policy_path='user/act'))
