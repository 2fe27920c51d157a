# SPDX-License-Identifier: Apache-2.0
"""One process at a time has the name of a server, over real sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
import os
import signal
import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as some
import pytest
from support.nodes.zenoh_links import free_endpoint
from support.paths import module_environment
from support.waiting import wait_until
from support.zenoh.fuzzing import fuzz, segments
from support.zenoh.regions import open_hub, open_in_region

from lerobot_serve.contract.records import ResetEpisodeRequest
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.errors import UserError
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.links.zenoh import zenoh_client
from lerobot_serve.zenoh import server_name
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.server_name import conflict_text, process_of, ServerName
from lerobot_serve.zenoh.settings import ZenohSettings

SERVER = '/cell/policy_server'
KEYS = ServerKeys('default', SERVER)
# a server in a process of its own: it takes the name behind a hub, and waits
HOLDER = """
import sys
from lerobot_serve.zenoh.keys import ServerKeys
from lerobot_serve.zenoh.server_name import ServerName
from lerobot_serve.zenoh.settings import ZenohSettings
from support.zenoh.regions import open_in_region
held = open_in_region('holder', ZenohSettings(connect=(sys.argv[1],)))
ServerName(held, ServerKeys('default', sys.argv[2])).claim(print)
print('claimed', flush=True)
sys.stdin.read()
"""

Open = Callable[..., ZenohLink]


@pytest.fixture
def open_link() -> Iterator[Open]:
    """Opens a link with these settings; all are closed after the test."""
    opened: list[ZenohLink] = []

    def start(**settings: object) -> ZenohLink:
        opened.append(ZenohLink(ZenohSettings(**settings)))
        return opened[-1]

    yield start
    for link in reversed(opened):
        link.close()


@pytest.fixture
def claim() -> Iterator[Callable[..., ServerName]]:
    """Takes the name of a server on a link."""
    held: list[ServerName] = []

    def take(link: ZenohLink, keys: ServerKeys = KEYS, log=lambda _: None) -> ServerName:
        held.append(ServerName(link, keys))
        held[-1].claim(log)
        return held[-1]

    yield take
    for name in reversed(held):
        name.close()


def test_a_second_server_of_a_name_refuses_to_start(open_link, claim):
    endpoint = free_endpoint()
    claim(open_link(listen=(endpoint,)))
    second = open_link(connect=(endpoint,))
    begin_s = time.monotonic()
    with pytest.raises(UserError) as refused:
        claim(second)
    assert time.monotonic() - begin_s >= server_name.RELEASE_TIMEOUT_S
    for words in (SERVER, "'default'", f'.{os.getpid()}', endpoint, '__ns:=', 'zenoh_site'):
        assert words in str(refused.value)
    # another name, and the same name of another site
    claim(second, ServerKeys('default', '/other/policy_server'))
    claim(second, ServerKeys('lab', SERVER))


def test_a_name_that_was_given_up_is_free_at_once(open_link, claim):
    endpoint = free_endpoint()
    claim(open_link(listen=(endpoint,))).close()
    begin_s = time.monotonic()
    claim(open_link(connect=(endpoint,)))
    assert time.monotonic() - begin_s < server_name.RELEASE_TIMEOUT_S


def test_a_server_without_others_does_not_wait(open_link, claim):
    begin_s = time.monotonic()
    claim(open_link(listen=(free_endpoint(),)))
    assert time.monotonic() - begin_s < server_name.CONNECT_TIMEOUT_S
    # no node listens there yet
    begin_s = time.monotonic()
    claim(open_link(connect=(free_endpoint(),)))
    assert time.monotonic() - begin_s < server_name.RELEASE_TIMEOUT_S


def test_two_that_meet_later_both_report_it_and_no_client_uses_them(open_link, claim):
    """Neither is connected to the other when it starts."""
    here, there = free_endpoint(), free_endpoint()
    logs: tuple[list[str], list[str]] = [], []
    first = open_link(connect=(there,))
    names = [claim(first, log=logs[0].append)]
    presence: list[Presence] = []
    robot = open_link(connect=(there,), listen=(here,))
    client = zenoh_client(robot, SERVER, Role.ROBOT, 'robot_1')
    client.listen(LinkCallbacks(lambda _: None, on_presence=presence.append))
    alone = open_link(connect=(here,))
    alive = alone.declare_alive(KEYS.alive)
    names.append(claim(alone, log=logs[1].append))
    wait_until(client.is_available, 'one server is there')
    assert not client.conflict
    # the second server: here is its endpoint
    late = ServerName(second := open_link(listen=(there,)), KEYS)
    late.claim(logs[1].append)
    try:
        wait_until(lambda: client.conflict, 'the client sees two')
        wait_until(lambda: names[0].conflict and late.conflict, 'both servers see two')
        assert not client.is_available()
        assert presence[-1] is Presence.AMBIGUOUS
        for call in (client.status, partial(client.reset, ResetEpisodeRequest())):
            with pytest.raises(ServerUnreachable, match='servers have the name /cell/policy_s'):
                call(1.0)
        assert 'stop all but one' in logs[0][-1]
        assert 'stop all but one' in logs[1][-1]
    finally:
        late.close()
    first.close()
    wait_until(client.is_available, 'one is left')
    assert not client.conflict
    client.end()
    alive.undeclare()
    second.close()


@pytest.fixture
def hub() -> Iterator[str]:
    """A Zenoh router; its endpoint."""
    endpoint = free_endpoint()
    session = open_hub(endpoint, ('holder', 'test'))
    yield endpoint
    session.close()


@pytest.fixture
def holder(hub) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the name, behind the hub."""
    process = subprocess.Popen(
        [sys.executable, '-c', HOLDER, hub, SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=module_environment(),
    )
    try:
        assert process.stdout and process.stdin
        assert process.stdout.readline() == b'claimed\n'
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def link(hub, holder) -> Iterator[ZenohLink]:
    """A link to the hub, which has seen the token of the holder."""
    opened = open_in_region('test', ZenohSettings(connect=(hub,)))
    try:
        wait_until(lambda: opened.tokens(KEYS.instance('*'), 1.0), 'the token of the first')
        yield opened
    finally:
        opened.close()


def test_a_server_behind_a_common_zenoh_router_is_found(holder, hub, claim):
    second = open_in_region('test', ZenohSettings(connect=(hub,)))
    try:
        with pytest.raises(UserError, match=rf'\.{holder.pid}\)'):
            claim(second)
    finally:
        second.close()


def test_the_name_of_a_killed_server_is_free_at_once(holder, link, claim):
    holder.kill()
    begin_s = time.monotonic()
    claim(link)
    assert time.monotonic() - begin_s < server_name.RELEASE_TIMEOUT_S


def test_the_name_of_a_server_that_hangs_is_free_after_the_lease(holder, link, claim):
    holder.send_signal(signal.SIGSTOP)
    claim(link)
    # it has not ended
    assert holder.poll() is None


@fuzz(300)
@given(some.sets(segments, min_size=2, max_size=9))
def test_any_token_gives_one_short_line(names):
    processes = {process_of(KEYS.instance(name)) for name in names}
    text = conflict_text(KEYS, processes)
    assert text.isprintable() and len(text) < 600
    assert text.startswith(f'{len(processes)} servers have the name {SERVER}')
