# SPDX-License-Identifier: Apache-2.0
"""Two policy servers that load at once on one machine: they do not both take the same room."""

from __future__ import annotations

import re
import signal

import pytest
from support.nodes.server_rig import ServerRig
from support.nodes.steering import Steering

from lerobot_serve.contract.schema import Status
from lerobot_serve.policies.runtime.memory import host_memory, MB

WAITS = 'waiting for it to finish loading'


@pytest.fixture
def pair(node, rig, tmp_path, monkeypatch):
    """Two servers whose policies each want most of the memory; the first stands at its gate."""
    runtime = tmp_path / 'runtime'
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv('XDG_RUNTIME_DIR', str(runtime))
    other = Steering(tmp_path / 'other')
    second = ServerRig(node, rig.fleet, other, '/second/policy_server')
    yield rig, second
    second.end()
    other.open_gates()
    other.end()


def start(rig: ServerRig, **more: object):
    """Start a server that needs two thirds of what is free while it loads."""
    (rig.steering.folder / 'program.onnx').write_bytes(bytes(1000))
    margin_mb = int(host_memory().free_bytes * 2 / 3 / MB)
    path = str(rig.steering.folder)
    return rig.start(
        'unconfigured',
        policy_kind='steered',
        policy_path=path,
        memory_margin_mb=margin_mb,
        **more,
    )


@pytest.mark.parametrize('end', ['loads', 'is killed'])
def test_the_second_waits_until_the_first_is_done(pair, end, log_of_rig):
    first, second = pair
    first.steering.loads.close_gate()
    process = start(first)
    first.wait_for_events('load')
    start(second)
    second.wait(lambda: WAITS in log_of_rig('second'), 'the second says that it waits')
    # other processes of this machine may load policies, too
    assert re.search(
        rf'reserved by the loading process [^:]*\b{process.pid}\b', log_of_rig('second')
    )
    assert not second.steering.events('load')
    if end == 'loads':
        first.steering.loads.open_gate()
        first.wait_for('active')
        assert first.client('one').round_trip().status == Status.OK
    else:
        process.send_signal(signal.SIGKILL)
    second.wait_for('active')
    assert second.client('two').round_trip().status == Status.OK


def test_who_waits_ends_when_it_is_told_to(pair, log_of_rig):
    first, second = pair
    first.steering.loads.close_gate()
    start(first)
    first.wait_for_events('load')
    process = start(second)
    second.wait(lambda: WAITS in log_of_rig('second'), 'the second says that it waits')
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert not second.steering.events('load')
    assert 'Traceback' not in log_of_rig('second')


def test_a_policy_for_which_there_is_no_room_is_refused_with_the_figures(pair):
    first, _ = pair
    first.start(
        'unconfigured',
        policy_kind='steered',
        policy_path=str(first.steering.folder),
        autostart=False,
    )
    # 4 KB on disk, more than the machine has
    with (first.steering.folder / 'program.onnx').open('wb') as file:
        file.truncate(1 << 42)
    assert not first.change_state('configure')
    assert 'declares 4194304 MB' in first.status().text
    assert '70% of' in first.status().text
    assert not first.steering.events('load')
    (first.steering.folder / 'program.onnx').unlink()
    assert first.change_state('configure')
