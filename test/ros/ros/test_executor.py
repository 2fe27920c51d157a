# SPDX-License-Identifier: Apache-2.0
"""Our executor, what other threads do to what it waits for, and what they promise it."""

from __future__ import annotations

from collections.abc import Iterator
import sys
import threading

import pytest
from rclpy.executors import SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from std_msgs.msg import Empty

from lerobot_serve.ros import qos
from lerobot_serve.ros.process import node_runtime as runtime_module
from lerobot_serve.ros.process.executor import ExecutorFuture
from lerobot_serve.ros.process.node_runtime import NodeRuntime

TIMES, LIMIT_S, QUIET_S = 300, 10.0, 0.3
FOR_EVER_S = 3600.0


@pytest.fixture
def runtime():
    before_s = sys.getswitchinterval()
    opened = NodeRuntime([])
    yield opened
    sys.setswitchinterval(before_s)
    opened.close()


@pytest.mark.slow
def test_entities_may_be_destroyed_while_it_prepares_to_wait(runtime):
    """Reply topics come and go with robots, and another thread may be the one that sees to it."""
    node = Node('test', context=runtime.context)
    runtime.add(node)
    # keeps it preparing
    node.create_timer(0.0001, lambda: None)
    runtime.spin_in_background()
    sys.setswitchinterval(1e-6)
    for number in range(TIMES):
        publisher = node.create_publisher(Empty, f'topic_{number % 7}', qos.COMMAND)
        subscription = node.create_subscription(Empty, 'topic', print, qos.COMMAND)
        node.destroy_publisher(publisher)
        node.destroy_subscription(subscription)
    assert runtime.failure is None


@pytest.fixture
def awaiting(runtime, monkeypatch) -> ExecutorFuture:
    """A promise, and a coroutine that awaits it and notes in `runtime.kept` what came of it."""
    # nothing but the promise is to wake it
    monkeypatch.setattr(runtime_module, 'SPIN_S', FOR_EVER_S)
    promise, began = ExecutorFuture(runtime.executor), threading.Event()
    runtime.kept, runtime.is_kept = [], threading.Event()

    async def wait() -> None:
        began.set()
        try:
            runtime.kept.append(await promise)
        except OSError as error:
            runtime.kept.append(str(error))
        runtime.is_kept.set()

    runtime.spin_in_background()
    runtime.executor.create_task(wait)
    assert began.wait(LIMIT_S)
    return promise


def test_who_awaits_a_promise_goes_on_when_it_is_kept(runtime, awaiting):
    awaiting.complete_with(lambda: 5)
    assert runtime.is_kept.wait(LIMIT_S)
    assert runtime.kept == [5]


def test_a_promise_may_end_in_an_error(runtime, awaiting):
    def fail() -> None:
        raise OSError('the disk is full')

    awaiting.complete_with(fail)
    assert runtime.is_kept.wait(LIMIT_S)
    assert runtime.kept == ['the disk is full']


def test_the_executor_sleeps_while_something_is_awaited(runtime, awaiting, monkeypatch):
    turns: list[None] = []
    take = runtime.executor._wait_for_ready_callbacks

    def counted(*arguments: object, **named: object) -> Iterator[object]:
        turns.append(None)
        return take(*arguments, **named)

    monkeypatch.setattr(runtime.executor, '_wait_for_ready_callbacks', counted)
    assert not runtime.is_kept.wait(QUIET_S)
    # it may be on its way to sleep when the counting begins
    assert len(turns) <= 3
    awaiting.set_result(None)
    assert runtime.is_kept.wait(LIMIT_S)


def test_what_a_thread_starts_at_the_end_is_waited_for_too(runtime):
    """A transition that is under way may start the threads of what it configures."""
    ended, moment = threading.Event(), threading.Event()

    def last() -> None:
        moment.wait(QUIET_S)
        ended.set()

    def first() -> None:
        runtime.stop.wait()
        moment.wait(QUIET_S)
        runtime.thread('last', last)

    runtime.thread('first', first)
    runtime.close()
    assert ended.is_set()
    assert not [each for each in threading.enumerate() if each.name in ('first', 'last')]


@pytest.mark.parametrize('text', ['action client pointer is invalid', 'out of memory'])
def test_an_action_that_is_destroyed_while_it_prepares_to_wait_is_left_out(
    runtime, monkeypatch, text: str
):
    error = rclpy_implementation.RCLError(f"Failed to add 'rcl_action_client_t': {text}")
    answers = iter([error, 'ready'])

    def answer(*_: object, **__: object) -> object:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(SingleThreadedExecutor, 'wait_for_ready_callbacks', answer)
    if text == 'out of memory':
        with pytest.raises(rclpy_implementation.RCLError):
            runtime.executor.wait_for_ready_callbacks()
    else:
        assert runtime.executor.wait_for_ready_callbacks() == 'ready'
