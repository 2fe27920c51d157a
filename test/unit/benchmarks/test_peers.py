# SPDX-License-Identifier: Apache-2.0
"""Peers to measure against: what they need, how they are asked, and one that is asked for real."""

from __future__ import annotations

import contextlib
from pathlib import Path
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.harness.processes import cpu_s
from benchmarks.peers import peer as processes
from benchmarks.peers import peer_process, pinned_packages
from benchmarks.peers.peer import Peer
from benchmarks.peers.peer_process import ImageSet
from benchmarks.peers.pinned_packages import PeerUnavailable

SMALL = ImageSet(2, 24, 32)


# what they need


def test_a_peer_wants_what_is_pinned_for_it_and_no_more():
    assert [pin.split('==')[0] for pin in pinned_packages.pins_of('lerobot')] == ['grpcio']
    names = {pin.split('==')[0] for pin in pinned_packages.pins_of('openpi')}
    assert names == set(pinned_packages.PACKAGES['openpi'])


def test_every_pin_of_the_section_is_for_a_peer(repository):
    section = (repository / 'requirements.txt').read_text().partition('# [bench]')[2]
    pins = [line for line in section.splitlines()[1:] if line]
    assert sorted(pins) == sorted(
        pin for peer in pinned_packages.PACKAGES for pin in pinned_packages.pins_of(peer)
    )


def test_without_sources_a_peer_is_left_out(tmp_path):
    with pytest.raises(PeerUnavailable, match='source tree'):
        pinned_packages.pins_of('openpi', tmp_path)


@pytest.fixture
def pip(monkeypatch):
    """Stands in for pip; its commands are noted."""
    commands, result = [], subprocess.CompletedProcess([], 0, '', '')

    def run(command, **_):
        commands.append(command)
        if not result.returncode:
            Path(command[command.index('--target') + 1]).mkdir(parents=True)
        return result

    monkeypatch.setattr(pinned_packages.subprocess, 'run', run)
    return commands, result


def test_a_peer_is_installed_once(pip, tmp_path):
    commands, _ = pip
    where = pinned_packages.install('openpi', tmp_path)
    assert where == (tmp_path / 'openpi').resolve() == pinned_packages.install('openpi', tmp_path)
    (command,) = commands
    assert command[0] == sys.executable
    assert '--no-deps' in command
    assert '--require-hashes' in command
    lines = [line.split() for line in Path(command[-1]).read_text().splitlines()]
    assert [pin for pin, *_ in lines] == pinned_packages.pins_of('openpi')
    assert all(hashes for _, *hashes in lines)


def test_other_pins_are_installed_anew(pip, tmp_path, monkeypatch):
    commands, _ = pip
    pinned_packages.install('openpi', tmp_path)
    monkeypatch.setattr(pinned_packages, 'pins_of', lambda peer: ['openpi-client==9'])
    assert pinned_packages.installed('openpi', tmp_path) is None
    pinned_packages.install('openpi', tmp_path)
    assert Path(commands[1][-1]).read_text() == 'openpi-client==9\n'


def test_what_pip_cannot_install_is_left_out_in_its_words(pip, tmp_path):
    _, result = pip
    result.returncode, result.stderr = 1, 'trying\nERROR: no network\n'
    with pytest.raises(
        PeerUnavailable, match=r'pip could not install .*openpi-client==.*no network'
    ):
        pinned_packages.install('openpi', tmp_path)
    assert pinned_packages.installed('openpi', tmp_path) is None


@pytest.mark.parametrize(
    ('peer', 'advice'), [('lerobot', 'TORCH'), ('floors.iceoryx', 'PYTHONPATH')]
)
def test_what_a_peer_needs_here_is_said(monkeypatch, tmp_path, peer, advice):
    monkeypatch.setattr(pinned_packages.util, 'find_spec', lambda name: None)
    with pytest.raises(PeerUnavailable, match=advice):
        pinned_packages.install(peer, tmp_path)


# how they are asked


def test_a_size_survives_the_command_line():
    assert ImageSet.parse(str(ImageSet(3, 720, 1280))) == ImageSet(3, 720, 1280)
    assert SMALL.picture_bytes == sum(
        frame.nbytes for frame in peer_process.frames(SMALL).values()
    )


def test_pictures_are_as_many_as_cameras_and_differ():
    frames = peer_process.frames(ImageSet(3, 24, 32))
    assert list(frames) == ['front', 'wrist', 'side']
    assert {frame.shape for frame in frames.values()} == {(24, 32, 3)}
    assert all(frame.flags.c_contiguous for frame in frames.values())
    assert not np.array_equal(frames['front'], frames['side'])
    assert list(peer_process.frames(SMALL)) == ['front', 'wrist']


@contextlib.contextmanager
def talking(orders, tmp_path):
    """Give a peer whose client is a thread that follows these orders."""
    with socket.socket(socket.AF_UNIX) as door:
        name = str(tmp_path / 'door')
        door.bind(name)
        door.listen()
        client = threading.Thread(target=follow, args=(name, orders))
        client.start()
        peer = Peer(processes.accept_client(door, {}), None, None)
        try:
            yield peer
        finally:
            peer.close()
            client.join(5.0)
            assert not client.is_alive()


def follow(name, orders):
    with contextlib.suppress(ConnectionError, SystemExit):
        peer_process.serve_orders(name, {'package': '1.2'}, orders)


def test_a_client_says_its_versions_and_makes_trips(tmp_path):
    asked = []
    role = peer_process.single_robot(lambda address: lambda frames: asked.append(frames) or 12.5)
    with talking(role(None), tmp_path) as peer:
        assert peer.versions == {'package': '1.2'}
        assert peer.trip_ms(SMALL) == 12.5
    assert asked[0] is peer_process.frames(SMALL)


def test_a_trip_without_a_chunk_is_lost(tmp_path):
    with talking({'trip': lambda size: peer_process.LOST}, tmp_path) as peer:
        assert peer.trip_ms(SMALL) is None


def test_after_its_end_a_peer_loses_all_trips(tmp_path):
    with talking({'trip': lambda size: sys.exit()}, tmp_path) as peer:
        assert [peer.trip_ms(SMALL) for _ in range(3)] == [None] * 3


def test_a_peer_that_hangs_is_waited_for_no_longer_than_said(tmp_path):
    let_go = threading.Event()
    with talking({'trip': lambda size: let_go.wait(30.0)}, tmp_path) as peer:
        begin = time.monotonic()
        assert peer.order('trip', '', within_s=0.1) is None
        assert time.monotonic() - begin < 10.0
        let_go.set()


def test_orders_have_arguments(tmp_path):
    with talking({'add': lambda *values: sum(values)}, tmp_path) as peer:
        assert peer.order('add', 1, 2, 3.5) == 6.5


def test_a_client_that_ends_before_it_calls_is_left_out_with_its_status(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, 'READY_S', 5.0)
    ended = subprocess.Popen([sys.executable, '-c', 'raise SystemExit(3)'])
    ended.wait(30.0)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / 'door'))
        door.listen()
        with pytest.raises(PeerUnavailable, match=r'some_client ended with status 3; see .*log'):
            processes.accept_client(door, {tmp_path / 'some_client.log': ended})


def test_a_client_that_never_calls_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, 'READY_S', 0.1)
    monkeypatch.setattr(processes, 'POLL_S', 0.05)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / 'door'))
        door.listen()
        with pytest.raises(PeerUnavailable, match='not up after'):
            processes.accept_client(door, {})


def test_commands_stand_behind_their_prefixes(tmp_path, monkeypatch):
    commands = {}

    @contextlib.contextmanager
    def child(command, log, environment):
        commands[log.stem] = command, environment
        yield

    monkeypatch.setattr(processes, 'child', child)
    monkeypatch.setattr(processes, 'accept_client', lambda door, started: None)
    monkeypatch.setattr(processes, 'Peer', lambda *_: SimpleNamespace(close=lambda: None))
    with processes.running_peer(
        'openpi',
        tmp_path,
        tmp_path,
        host='10.0.0.2',
        server_prefix=('far', 'there'),
        client_prefix=('near',),
    ):
        pass
    server, environment = commands['openpi_server']
    client, _ = commands['openpi_client']
    assert server[:3] == ['far', 'there', 'env']
    assert client[:2] == ['near', 'env']
    assert environment['PYTHONPATH'].split(':')[0] == str(tmp_path)
    where = server.index('server') + 1
    assert server[where] == '10.0.0.2' == client[client.index('client') + 1]
    assert server[where + 1] == client[client.index('client') + 2]


def test_cpu_time_is_told_of_another_process():
    burning = 'import sys; sum(range(3_000_000)); print(flush=True); sys.stdin.read()'
    with subprocess.Popen(
        [sys.executable, '-c', burning], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        used_s = cpu_s(process.pid)
        begin_s = time.process_time()
        sum(range(3_000_000))
        same_work_s = time.process_time() - begin_s
        assert used_s > same_work_s / 4
        # what is burnt here is not counted there
        assert cpu_s(process.pid) - used_s < same_work_s / 4
        process.stdin.close()


@pytest.fixture
def installed(repository):
    found = pinned_packages.installed('openpi', repository / 'out' / 'bench' / 'peers')
    if not found:
        pytest.skip('openpi-client is not installed; `make bench BENCH=many_robots` installs it')
    return found


def test_openpi_s_client_is_served(installed, tmp_path):
    with processes.running_peer('openpi', installed, tmp_path) as peer:
        pinned = dict(pin.split('==') for pin in pinned_packages.pins_of('openpi'))
        assert peer.versions == pinned
        assert all(peer.trip_ms(SMALL) for _ in range(3))
        peer.server.kill()
        peer.server.wait()
        assert peer.trip_ms(SMALL) is None


def test_openpi_s_robots_are_served(installed, tmp_path):
    with processes.running_peer('openpi', installed, tmp_path, role='robots') as peer:
        assert peer.order('open', 3, str(SMALL)) == 3
        told = peer.order('pace', 0.2, 20.0)
        # a busy machine misses a turn
        assert all(1 <= one['sent'] <= 4 for one in told)
        assert all(len(one['latencies_ms']) == one['sent'] for one in told)
        assert cpu_s(peer.server.pid) > 0


@pytest.mark.parametrize(
    'peer', ['floors.memfd', 'floors.tcp', 'floors.bare_zenoh', 'lerobot_shaped']
)
def test_what_needs_no_package_is_served(peer, tmp_path):
    packages = pinned_packages.install(peer, tmp_path / 'peers')
    with processes.running_peer(peer, packages, tmp_path) as met:
        for size in (SMALL, ImageSet(3, 240, 320), SMALL):
            assert all(met.trip_ms(size) for _ in range(3))
