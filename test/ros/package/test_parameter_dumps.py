# SPDX-License-Identifier: Apache-2.0
"""What `ros2 param dump` writes of a node starts it again; a refused change changes no type."""

from __future__ import annotations

from typing import Any

import pytest
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python
from support.nodes.service_asking import ask as ask_service
from support.paths import REPOSITORY
import yaml

START = {
    'policy_server': {'policy_kind': 'null'},
    'policy_router': {},
    'edge_controller': {'client_id': 'robot'},
    'gateway': {'http.port': 0},
    'learner': {'parent': str(REPOSITORY / 'config/policies/reach')},
    'sim_robot': {},
}
# a double of each that may change while the node runs
DOUBLES = {
    'policy_server': 'drain_timeout_s',
    'policy_router': 'discovery_timeout_s',
    'edge_controller': 'request_threshold_s',
}


def ask(node, owner: str, kind: type, **request: Any) -> Any:
    name = {
        ListParameters: 'list_parameters',
        GetParameters: 'get_parameters',
        DescribeParameters: 'describe_parameters',
        SetParameters: 'set_parameters',
    }[kind]
    client = node.create_client(kind, f'/{owner}/{name}')
    assert client.wait_for_service(timeout_sec=60.0), f'{owner} does not come up'
    try:
        return ask_service(node, client, kind.Request(**request))
    finally:
        node.destroy_client(client)


def own_names(node, owner: str) -> list[str]:
    """Return the names of its parameters but those of topics, some of which come up later."""
    names = ask(node, owner, ListParameters).result.names
    return [name for name in names if not name.startswith('qos_overrides.')]


def values(node, owner: str) -> dict[str, Any]:
    names = own_names(node, owner)
    told = ask(node, owner, GetParameters, names=names).values
    return dict(zip(names, map(parameter_value_to_python, told), strict=True))


def dumped(owner: str, told: dict[str, Any]) -> str:
    """Return the YAML of `ros2 param dump`, in which a name with dots is a tree."""
    tree: dict[str, Any] = {}
    for name, value in told.items():
        branch = tree
        *groups, leaf = name.split('.')
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = value
    return yaml.dump({f'/{owner}': {'ros__parameters': tree}}, default_flow_style=False)


@pytest.mark.slow
@pytest.mark.parametrize('name', START)
def test_a_dump_starts_the_node_again_with_the_same_values(
    name, processes, node, wait_until, log_of, tmp_path
):
    first = processes.start('first', name, **START[name])
    before = values(node, name)
    assert [] in before.values() or name == 'sim_robot'
    file = tmp_path / 'dump.yaml'
    file.write_text(dumped(name, before))
    first.terminate()
    assert first.wait(20) == 0
    wait_until(lambda: name not in node.get_node_names(), 'the first has gone', 60.0)
    second = processes.start('second', name, params_file=file)
    wait_until(
        lambda: name in node.get_node_names() or second.poll() is not None, 'the second is there'
    )
    assert second.poll() is None, log_of('second')
    assert values(node, name) == before


@pytest.mark.parametrize('name', DOUBLES)
def test_a_refused_change_leaves_the_type_as_described(name, processes, node):
    processes.start('first', name, **START[name])
    double = DOUBLES[name]

    def described() -> dict[str, int]:
        told = ask(node, name, DescribeParameters, names=own_names(node, name)).descriptors
        assert not any(each.dynamic_typing for each in told)
        return {each.name: each.type for each in told}

    def change(value: object) -> str:
        message = Parameter(double, value=value).to_parameter_msg()
        return ask(node, name, SetParameters, parameters=[message]).results[0].reason

    before = described()
    assert before[double] == ParameterType.PARAMETER_DOUBLE
    assert change('soon').startswith(f"{double} must be a double, got 'soon'")
    assert change(True).startswith(f'{double} must be a double')
    assert change(-5.0) != ''
    assert described() == before
    whole = int(values(node, name)[double]) or 1
    assert change(whole) == ''
    assert values(node, name)[double] == float(whole)
    assert described() == before
