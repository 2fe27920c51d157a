# SPDX-License-Identifier: Apache-2.0
"""A test that fails shows where the threads of its nodes are."""

from __future__ import annotations

import shutil

import pytest
from support.processes.native_stacks import print_stacks


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('gdb'), reason='gdb is not installed; it reads the stacks')
def test_the_threads_of_a_node_are_shown(processes, wait_until, node, capsys):
    server = processes.start('server', 'policy_server', policy_kind='null')
    wait_until(lambda: node.count_publishers('/policy_server/status'), 'the server is found')
    ended = _ended(processes)

    def stacks() -> str:
        print_stacks({'server': server, 'ended': ended})
        return capsys.readouterr().out

    printed = stacks()
    assert printed.startswith('--- server, threads in the middleware')
    assert 'ended' not in printed
    # a thread that is at work just now is elsewhere
    for place in ('ResourceEvent::event_service', 'Port::wait_pop'):
        wait_until(lambda place=place: place in stacks(), place)


def _ended(processes):
    process = processes.start('ended', 'sim_robot', namespace='/ended')
    process.kill()
    process.wait()
    return process
