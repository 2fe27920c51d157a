# SPDX-License-Identifier: Apache-2.0
"""Parameters of running nodes, seen and changed as rqt and `ros2 param` do."""

from __future__ import annotations

import pytest
from rcl_interfaces.srv import DescribeParameters, SetParameters, SetParametersAtomically
from rclpy.node import Node
from rclpy.parameter import Parameter

from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve.ros.node.node_parameters import NodeParameters
from lerobot_serve.router.parameters import RouterParameters


@pytest.fixture
def served(runtime, node):
    """A node with the router's parameters, and a client of its services."""
    owner = Node('owner', context=runtime.context)
    server = NodeParameters(owner, RouterParameters)
    runtime.executor.add_node(owner)
    yield server
    runtime.executor.remove_node(owner)
    owner.destroy_node()


def ask(node, kind, name: str, **values):
    client = node.create_client(kind, f'/owner/{name}')
    parameters = [Parameter(key, value=value).to_parameter_msg() for key, value in values.items()]
    return call_service(client, kind.Request(parameters=parameters), 10.0)


def test_an_accepted_change_is_in_force_and_heard(served, node):
    heard = []
    served.on_change(heard.append)
    reply = ask(node, SetParameters, 'set_parameters', split_percent=80)
    assert reply.results[0].successful
    assert served.current.split_percent == 80
    assert [p.split_percent for p in heard] == [80]


@pytest.mark.parametrize(
    ('values', 'words'),
    [
        ({'split_percent': 140}, ['split_percent', '140', '100']),
        ({'split_percent': 'half'}, ['split_percent', 'half']),
        ({'slot_a': '/elsewhere'}, ['slot_a']),
        ({'split': 5}, []),
    ],
)
def test_a_rejected_change_names_the_reason_and_changes_nothing(served, node, values, words):
    before, heard = served.current, []
    served.on_change(heard.append)
    result = ask(node, SetParameters, 'set_parameters', **values).results[0]
    assert not result.successful
    for word in words:
        assert word in result.reason
    assert served.current == before
    assert not heard


def test_a_set_of_changes_is_accepted_or_rejected_as_a_whole(served, node):
    before = served.current
    values = {'split_percent': 10, 'max_remembered_placements': 5000}
    reply = ask(node, SetParametersAtomically, 'set_parameters_atomically', **values)
    assert not reply.result.successful
    assert served.current == before


def test_descriptions_carry_text_unit_range_and_liveness(served, node):
    client = node.create_client(DescribeParameters, '/owner/describe_parameters')
    request = DescribeParameters.Request(names=['split_percent', 'autostart'])
    split, autostart = call_service(client, request, 10.0).descriptors
    assert 'share of new episodes' in split.description
    assert '[%]' in split.description
    assert (split.integer_range[0].from_value, split.integer_range[0].to_value) == (0, 100)
    assert (split.read_only, autostart.read_only) == (False, True)
