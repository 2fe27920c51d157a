# SPDX-License-Identifier: Apache-2.0
"""The link of the benchmark slow_link, with the kernel's own packets; and none, in words."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import slow_link
from benchmarks.network_emulation import link as processes
from benchmarks.network_emulation.link import Link, LinkUnavailable, running_link
from benchmarks.network_emulation.pipe import Conditions
from benchmarks.peers.peer_process import ImageSet

FAR = Conditions(rate_mbit_s=20, delay_ms=30, loss_percent=0, queue_ms=100)
ROUNDS = 4
TRIPS = 5


def test_a_link_gives_the_delay_and_the_rate_that_were_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(slow_link, 'BULK_S', 0.5)
    try:
        case = slow_link.probe('far', FAR, ROUNDS, tmp_path)
    except LinkUnavailable as reason:
        pytest.skip(str(reason))
    assert case.counts['lost'] == 0
    pings_ms = case.series_ms['small datagram there and back']
    assert len(pings_ms) == ROUNDS
    assert min(pings_ms) >= 2 * FAR.delay_ms
    assert 0 < case.parameters['tcp_mbit_s'] <= FAR.rate_mbit_s
    # each way is counted by itself
    assert case.counts['up offered_bytes'] > 10 * case.counts['down offered_bytes'] > 0


def test_each_side_sees_its_own_network_and_shared_memory():
    seen = 'ls /dev/shm; cat /proc/net/dev'
    try:
        with running_link(FAR, 1) as link:
            texts = [
                subprocess.run(
                    [*prefix, 'sh', '-c', seen], capture_output=True, text=True, timeout=20
                ).stdout
                for prefix in (link.robot, link.server)
            ]
    except LinkUnavailable as reason:
        pytest.skip(str(reason))
    for text in texts:
        lines = text.split('\n')
        # nothing before the head of the table of interfaces
        assert lines[0].startswith('Inter-')
        assert {line.split(':')[0].strip() for line in lines[2:-1]} == {'lo', 'link0'}


def test_where_no_link_can_be_had_the_benchmark_says_so(monkeypatch, tmp_path):
    refusal = 'print(\'{"refused": "Operation not permitted: /dev/net/tun"}\')'

    def refusing(name, *arguments):
        return [sys.executable, '-c', refusal]

    monkeypatch.setattr(processes, 'module_command', refusing)
    (case,) = slow_link.measure(ROUNDS, tmp_path)
    assert case.name == 'no link'
    assert case.parameters['reason'] == (
        'this system allows no link between two networks: Operation not permitted: /dev/net/tun'
    )


def test_a_relay_that_ended_is_told():
    relay = subprocess.Popen(
        [sys.executable, '-c', ''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with relay, pytest.raises(processes.UserError, match='the relay between the two networks'):
        Link(relay)


@pytest.mark.slow
def test_a_large_request_goes_over_a_slow_link_once_and_not_in_copies(tmp_path):
    """
    Where the profile lets readers ask for pieces that are still under way, each is sent three or
    four times, and a link with a shorter queue drops them all.
    """
    size = ImageSet(2, 320, 320)
    far = Conditions(rate_mbit_s=100, delay_ms=20, loss_percent=0, queue_ms=500)
    sent = []
    try:
        with running_link(far, 1) as link, slow_link.ours(link, tmp_path) as robot:
            trip_ms = slow_link.our_trip(robot, 'raw')
            # opens the session
            assert trip_ms(size) is not None
            for _ in range(TRIPS):
                link.settle()
                before = link.counts()['up']['offered_bytes']
                assert trip_ms(size) is not None
                link.settle()
                sent.append((link.counts()['up']['offered_bytes'] - before) / size.picture_bytes)
    except LinkUnavailable as reason:
        pytest.skip(str(reason))
    # on a busy machine a heartbeat may come in the middle of one of them
    assert 1 < min(sent) < 2
