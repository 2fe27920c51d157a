# SPDX-License-Identifier: Apache-2.0
"""Calling services: who is asked, and what is told when nobody answers."""

from __future__ import annotations

from functools import partial
import threading

import pytest
from rcl_interfaces.srv import GetParameters
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.task import Future
from std_srvs.srv import Trigger

from lerobot_serve.ros.contract.service_call import (
    call_service,
    ServiceCallFailed,
    wait_until_discovered,
)
from lerobot_serve.tools.operate import service_calls

NAME = '/asked'


class Deaf:
    """A service that answers nobody, like one that was killed and is still found."""

    def __init__(self, node) -> None:
        self.asked = threading.Event()
        self.times = 0
        # a group of its own: what waits in the node's keeps the others waiting
        group = ReentrantCallbackGroup()
        node.create_service(Trigger, NAME, self._serve, callback_group=group)
        self.client = node.create_client(Trigger, NAME)
        self.offers = partial(node.count_services, NAME)

    async def _serve(self, _: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        self.times += 1
        self.asked.set()
        await Future()
        return response


@pytest.fixture
def deaf(node) -> Deaf:
    return Deaf(node)


def answer(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
    response.message = 'here'
    return response


def test_who_comes_while_another_one_does_not_answer_is_asked_too(deaf, node):
    def successor() -> None:
        assert deaf.asked.wait(20.0)
        node.create_service(Trigger, NAME, answer)

    comes = threading.Thread(target=successor)
    comes.start()
    response = call_service(
        deaf.client, Trigger.Request(), 20.0, idempotent=True, count_servers=deaf.offers
    )
    comes.join()
    assert response.message == 'here'
    # what was not answered is waited for no more
    assert not deaf.client._pending_requests


def test_one_who_takes_his_time_is_not_asked_twice(deaf):
    with pytest.raises(ServiceCallFailed, match=r'/asked: no response within 0\.6 s'):
        call_service(
            deaf.client, Trigger.Request(), 0.6, idempotent=True, count_servers=deaf.offers
        )
    assert deaf.times == 1
    assert not deaf.client._pending_requests


def test_a_read_whose_response_is_lost_is_asked_again(node):
    requests = []

    async def serve(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        requests.append(request)
        if len(requests) == 1:
            await Future()
        return answer(request, response)

    node.create_service(Trigger, NAME, serve, callback_group=ReentrantCallbackGroup())
    client = node.create_client(Trigger, NAME)
    assert call_service(client, Trigger.Request(), 20.0, idempotent=True).message == 'here'
    assert len(requests) == 2
    assert not client._pending_requests


def test_a_command_whose_response_is_lost_is_sent_once(deaf):
    with pytest.raises(ServiceCallFailed, match='no response'):
        call_service(deaf.client, Trigger.Request(), 2.5)
    assert deaf.times == 1


class Owner:
    """A node that loses its first response to a reader of parameters, and keeps what it hears."""

    def __init__(self, node) -> None:
        self.heard: list[str] = []
        group = ReentrantCallbackGroup()
        create = partial(node.create_service, callback_group=group)
        create(GetParameters, '/owner/get_parameters', self._read)
        for name in ('resume', 'pause'):
            create(Trigger, f'/owner/{name}', partial(self._trigger, name))

    async def _read(self, _: object, response: GetParameters.Response) -> GetParameters.Response:
        self.heard.append('get_parameters')
        if len(self.heard) == 1:
            await Future()
        return response

    def _trigger(self, name: str, request: Trigger.Request, response: Trigger.Response):
        self.heard.append(name)
        return answer(request, response)


def test_a_client_waits_until_a_later_one_has_its_response(node):
    owner = Owner(node)
    client = node.create_client(Trigger, '/owner/resume')
    wait_until_discovered(node, client, 20.0)
    assert owner.heard == ['get_parameters', 'get_parameters']
    # the client with which it looked is gone
    assert [each.srv_name for each in node.clients] == ['/owner/resume']


def test_a_client_waits_for_a_bounded_time(deaf, node):
    for name in (NAME, '/elsewhere/asked'):
        wait_until_discovered(node, node.create_client(Trigger, name), 0.2)
    assert not deaf.times


def test_a_command_of_an_operator_is_sent_once_discovered_and_a_pause_at_once(node, monkeypatch):
    owner = Owner(node)
    monkeypatch.setattr(service_calls, 'DISCOVERED_S', 20.0)
    calls = service_calls.ServiceCalls(node, 20.0)
    assert calls.trigger('/owner', 'resume') == (False, 'here')
    assert owner.heard == ['get_parameters', 'get_parameters', 'resume']
    assert calls.trigger('/owner', 'pause') == (False, 'here')
    assert owner.heard[3:] == ['pause']


def test_a_node_that_closes_asks_nobody(deaf):
    stop = threading.Event()
    stop.set()
    with pytest.raises(ServiceCallFailed):
        call_service(deaf.client, Trigger.Request(), 20.0, stop)
    assert not deaf.times


def test_a_service_that_is_not_there_is_named(node):
    client = node.create_client(Trigger, '/nowhere')
    with pytest.raises(ServiceCallFailed, match='/nowhere: service not available'):
        call_service(client, Trigger.Request(), 0.1)
