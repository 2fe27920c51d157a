# SPDX-License-Identifier: Apache-2.0
"""Services of names as states have them, and of names and texts as people type them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.nodes.operator import Operator

from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.outcome import NotReached
from lerobot_serve_interfaces.srv import ControlSlot

Call = Callable[[FleetClient, str], object]
CALLS: dict[str, Call] = {
    'control_slot': lambda client, name: client.control_slot(name, 'NOTE', reason='why'),
    'report_outcome': lambda client, name: client.report_outcome(name, 'ep', 'success', ''),
    'trigger': lambda client, name: client.trigger(name, 'pause'),
    'get_parameters': lambda client, name: client.get_parameters(name, ['policy_root']),
    'set_parameters': lambda client, name: client.set_parameters(name, {'policy_path': '/v2'}),
    'lifecycle_state': lambda client, name: client.lifecycle_state(name),
    'change_state': lambda client, name: client.change_state(name, 'activate', 0.1),
    'server': lambda client, name: client.server(name),
    'swap_policy': lambda client, name: client.swap_policy(name, 'v2'),
}


@pytest.fixture
def client():
    with FleetClient(0.05) as found:
        yield found


@pytest.mark.parametrize('call', CALLS.values(), ids=CALLS)
def test_a_name_that_no_node_has_is_not_reached(client, call):
    for name, why in (
        ('zenoh:/b1/policy_server', '/b1/policy_server/.* is not available'),
        ('/slot-a/policy_server', 'is not a name of a service'),
        ('my server', 'is not a name of a service'),
        ('/', 'is not a name of a service'),
    ):
        with pytest.raises(NotReached, match=why) as raised:
            call(client, name)
        assert '\n' not in str(raised.value)


def test_a_router_over_zenoh_is_reached_and_a_reason_of_another_encoding_is_sent(node):
    reasons: list[str] = []

    def reply(request: ControlSlot.Request, response: ControlSlot.Response) -> object:
        reasons.append(request.reason)
        response.success = True
        return response

    node.create_service(ControlSlot, '/b1/policy_router/control_slot', reply)
    with FleetClient(20.0) as client:
        # as Python reads the byte ff of a command line
        name, reason = 'zenoh:/b1/policy_router', 'kim: \udcff'
        assert client.control_slot(name, 'NOTE', reason=reason)[0]
        with pytest.raises(NotReached, match='is not UTF-8 text'):
            client.control_slot(name, 'NOTE', slot='\udcff', reason='why')
    assert reasons == ['kim: ?']


@pytest.mark.parametrize('name', ['slot-a/policy_server', 'my server', ''])
def test_a_wrong_name_of_a_server_is_answered_with_those_that_there_are(capsys, name):
    operator = Operator(capsys)
    refused = operator.is_refused_within('0.1', 'swap', name, 'v2', '--yes')
    assert 'Policy servers that are found: none' in refused
