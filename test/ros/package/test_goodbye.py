# SPDX-License-Identifier: Apache-2.0
"""
A node that ends tells its peers, which otherwise wait until its lease of some seconds expires: a
server for acknowledgements, an edge before it takes the next server. A fork of the fork server
that ends without that has the exit status GOODBYE_MISSING; the fixtures look at all of them.
"""

from __future__ import annotations

import signal

import pytest
from support.paths import REPOSITORY

START = {
    'policy_server': {'policy_kind': 'null'},
    'policy_router': {},
    'edge_controller': {'client_id': 'robot'},
    'gateway': {'http.port': 0},
    'learner': {'parent': str(REPOSITORY / 'config/policies/reach')},
    'sim_robot': {},
}


@pytest.mark.parametrize('name', START)
def test_it_says_goodbye(name, processes, node, wait_until, log_of):
    process = processes.start(name, name, **START[name])

    def is_known() -> bool:
        return name in {known for known, _ in node.get_node_names_and_namespaces()}

    wait_until(lambda: is_known() or process.poll() is not None, f'{name} comes up')
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0, log_of(name)
    wait_until(lambda: not is_known(), f'{name} is gone')
