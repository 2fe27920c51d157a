# SPDX-License-Identifier: Apache-2.0
"""
The local path to a process of another user, and to one in namespaces of its own, as a container
has: the kernel itself says who may connect, and where a socket can be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from lerobot_serve.local.access import Access
from lerobot_serve.local.endpoint import DENIED
from lerobot_serve.local.offer import encode
from unit.local.test_local_path import Server, TOPIC

# a user and a group without a name
USER, GROUP = 64001, 64002
UNSHARE = ('unshare', '--net', '--mount', '--pid', '--fork', '--kill-child')


Report = dict[str, Any]


def can_have_namespaces() -> bool:
    if not shutil.which('unshare'):
        return False
    return subprocess.run([*UNSHARE, 'true'], capture_output=True, timeout=20).returncode == 0


def run_client(server: Server, prefix: Sequence[str] = (), who: Sequence[int] = ()) -> Report:
    """Return what a client reports that is given the server's offer, as `who` if it is given."""
    client = subprocess.Popen(
        [*prefix, sys.executable, '-m', 'support.local_client', *map(str, who)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    try:
        assert client.stdin
        client.stdin.write(encode(server.endpoint.offer(TOPIC)))
        client.stdin.close()
        client.stdin = None
        return answered(server, client)
    finally:
        client.kill()
        client.wait()


def answered(server: Server, client: subprocess.Popen[bytes]) -> Report:
    """Reply to the request of a client, if it sends one; return its report."""
    while client.poll() is None:
        if not server.requests.empty():
            request = server.take()
            kind = type(request).__name__
            assert bytes(request) == b'request'
            assert server.endpoint.send(TOPIC, kind.encode())
        else:
            try:
                client.wait(0.01)
            except subprocess.TimeoutExpired:
                continue
    report: Report = json.loads(client.communicate(timeout=10)[0])
    return report


another_user = pytest.mark.skipif(
    os.getuid() != 0, reason='only root can start a process of another user'
)
own_namespaces = pytest.mark.skipif(
    not can_have_namespaces(),
    reason='this user cannot make namespaces as a container has them',
)


@another_user
def test_a_process_of_another_user_is_turned_away():
    server = Server()
    report = run_client(server, who=(USER, GROUP))
    assert not report['is_sent']
    assert server.drops == {DENIED: 1}
    server.close()


@another_user
@pytest.mark.parametrize('who', [(USER, GROUP), (USER, USER, GROUP)], ids=['primary', 'other'])
def test_a_member_of_the_group_is_served_and_its_request_copied_first(who: tuple[int, ...]):
    server = Server(access=Access(GROUP))
    report = run_client(server, who=who)
    assert report == {'is_sent': True, 'chunks': ['bytes'], 'log': []}
    server.close()


@own_namespaces
def test_another_container_reaches_a_socket_in_a_folder_that_both_have():
    with tempfile.TemporaryDirectory(prefix='ls') as folder:
        server = Server(folder=folder)
        report = run_client(server, UNSHARE)
        assert report == {'is_sent': True, 'chunks': ['memoryview'], 'log': []}
        server.close()


@own_namespaces
def test_another_container_without_the_folder_takes_the_link():
    server = Server()
    assert run_client(server, UNSHARE) == {'is_sent': False, 'chunks': [], 'log': []}
    assert not server.drops
    server.close()
