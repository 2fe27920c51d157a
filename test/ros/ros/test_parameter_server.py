# SPDX-License-Identifier: Apache-2.0
"""A node's parameters: who may change them, what a change does, and what the node does itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
import queue

import pytest
from rcl_interfaces.msg import ParameterEvent
from rcl_interfaces.srv import GetParameters, SetParameters, SetParametersAtomically
from rclpy.node import Node
from rclpy.parameter import Parameter, parameter_value_to_python
from support.processes.in_executor import in_executor

from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve.ros.node.node_parameters import NodeParameters


@dataclass(frozen=True, slots=True)
class Example:
    share: int = parameter(50, 'share of something', low=0, high=100, live=True)
    steps: tuple[str, ...] = parameter((), 'steps of the plan', live=True, name='plan.steps')
    wait_s: float = parameter(1.0, 'time between two', low=0.0, live=True, name='plan.wait_s')
    fixed: int = parameter(7, 'fixed at start')
    managed: int = parameter(1, 'in use while configured', on_configure=True)

    def check(self) -> None:
        if self.steps and self.share == 13:
            raise ParameterError('plan.steps needs another share than 13')


class Guard:
    """Refuses changes of the share while there is a plan, as a canary does."""

    def __init__(self) -> None:
        self.asked: list[tuple[Example, Example]] = []

    def __call__(self, old: Example, new: Example) -> None:
        self.asked.append((old, new))
        if old.steps and old.share != new.share:
            raise ParameterError('share is steered by the plan; clear plan.steps first')


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def served(runtime, node, guard):
    owner = Node('owner', context=runtime.context)
    server = NodeParameters(owner, Example, check=guard)
    server.heard = []
    server.on_change(server.heard.append)
    runtime.executor.add_node(owner)
    yield server
    runtime.executor.remove_node(owner)
    owner.destroy_node()


@pytest.fixture
def ask(node):
    """Changes parameters as rqt does; returns why each was refused."""

    def change(values: dict[str, object], kind: type = SetParameters) -> list[str]:
        wanted = [Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        name = 'set_parameters_atomically' if kind is SetParametersAtomically else 'set_parameters'
        client = node.create_client(kind, f'/owner/{name}')
        reply = call_service(client, kind.Request(parameters=wanted), 10.0)
        results = reply.results if kind is SetParameters else [reply.result]
        return [result.reason for result in results]

    return change


def get(node, *names: str) -> list[object]:
    """Return values as `ros2 param get` shows them."""
    client = node.create_client(GetParameters, '/owner/get_parameters')
    reply = call_service(client, GetParameters.Request(names=list(names)), 10.0)
    return [parameter_value_to_python(value) for value in reply.values]


def test_a_name_with_a_dot_is_the_name_for_everybody_outside(served, ask, node):
    assert ask({'plan.steps': ['5', '100'], 'plan.wait_s': 2}) == ['', '']
    assert (served.current.steps, served.current.wait_s) == (('5', '100'), 2.0)
    assert get(node, 'plan.steps') == [['5', '100']]
    assert ask({'plan.wait_s': 'long'}) == ["plan.wait_s must be a double, got 'long'"]
    assert ask({'wait_s': 1.0}) != ['']


@pytest.mark.parametrize(
    'text',
    [
        '{plan: {steps: ["5", "100"], wait_s: 3.0}}',
        '{plan.steps: ["5", "100"], plan.wait_s: 3.0}',
    ],
)
def test_a_name_with_a_dot_is_taken_from_a_file_in_both_forms_of_ros(runtime, tmp_path, text):
    file = tmp_path / 'mine.yaml'
    file.write_text(f'/**:\n  ros__parameters: {text}\n')
    words = ['--ros-args', '--params-file', str(file)]
    given = Node('given', context=runtime.context, cli_args=words)
    current = NodeParameters(given, Example).current
    given.destroy_node()
    assert (current.steps, current.wait_s) == (('5', '100'), 3.0)


def test_the_check_sees_old_and_new_and_its_refusal_changes_nothing(served, ask, guard, node):
    assert ask({'plan.steps': ['5']}) == ['']
    before, heard = served.current, list(served.heard)
    assert guard.asked[-1] == (Example(), before)
    reason = 'share is steered by the plan; clear plan.steps first'
    assert ask({'share': 10}) == [reason]
    assert ask({'share': 10, 'plan.wait_s': 9.0}, SetParametersAtomically) == [reason]
    assert served.current == before
    assert served.heard == heard
    assert get(node, 'share', 'plan.wait_s') == [50, 1.0]


def test_the_check_is_not_asked_about_what_is_refused_anyhow_or_is_not_ours(served, ask, guard):
    ask({'share': 140})
    ask({'fixed': 8})
    ask({'use_sim_time': False})
    assert guard.asked == []


def test_several_that_are_not_changed_together_arrive_one_by_one(served, ask, guard):
    assert ask({'plan.steps': ['5'], 'share': 10}) != ['', '']
    assert (served.current.steps, served.current.share) == (('5',), 50)
    assert len(guard.asked) == 2


def test_the_node_changes_its_own_without_the_check(served, ask, guard, node):
    ask({'plan.steps': ['5']})
    guard.asked.clear()
    # in the thread that changes parameters for others, too
    in_executor(node, lambda: served.set_own(share=95, wait_s=4))
    assert guard.asked == []
    assert served.current == Example(share=95, steps=('5',), wait_s=4.0)
    assert served.heard[-1] == served.current
    assert get(node, 'share', 'plan.wait_s') == [95, 4.0]
    # and only that once
    assert ask({'share': 10}) == ['share is steered by the plan; clear plan.steps first']


def test_what_the_node_changes_is_an_event_for_all_who_watch(served, node, wait_until):
    events: queue.SimpleQueue[ParameterEvent] = queue.SimpleQueue()
    watch = node.create_subscription(ParameterEvent, '/parameter_events', events.put, 10)
    wait_until(lambda: watch.get_publisher_count() >= 2, 'both nodes are found')
    served.set_own(share=95, steps=())
    event = events.get(timeout=10)
    assert event.node == '/owner'
    told = {p.name: parameter_value_to_python(p.value) for p in event.changed_parameters}
    assert told == {'share': 95, 'plan.steps': []}


@pytest.mark.parametrize(
    ('values', 'reason'),
    [
        ({'share': 140}, r'share must be in \[0, 100\], got 140'),
        ({'share': 60, 'wait_s': 'long'}, 'plan.wait_s must be a double'),
        ({'share': 13, 'steps': ('5',)}, 'plan.steps needs another share than 13'),
        ({'managed': 2}, 'managed is 1 while the node is configured'),
        ({'fixed': 8}, 'fixed'),
    ],
)
def test_the_node_too_changes_all_or_nothing(served, values, reason):
    with pytest.raises(ParameterError, match=reason):
        served.set_own(**values)
    assert served.current == Example()
    assert served.heard == []


def test_a_failed_change_of_its_own_leaves_the_check_in_force(served, ask, guard, node):
    def fail() -> None:
        with pytest.raises(ParameterError):
            served.set_own(share=13, steps=('5',))

    in_executor(node, fail)
    ask({'share': 20})
    assert guard.asked == [(Example(), replace(Example(), share=20))]
