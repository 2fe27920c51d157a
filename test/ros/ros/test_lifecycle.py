# SPDX-License-Identifier: Apache-2.0
"""What a managed node remembers of a transition that failed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lerobot_serve.ros.node.lifecycle import LifecycleNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime


class FailingNode(LifecycleNode):
    """Its drain fails."""

    def configure(self) -> None: ...

    def activate(self) -> None: ...

    def deactivate(self) -> None:
        raise RuntimeError('the drain failed')

    def cleanup(self) -> None: ...


@pytest.fixture
def managed() -> Iterator[FailingNode]:
    runtime = NodeRuntime([])
    made = FailingNode('managed', runtime)
    yield made
    made.destroy_node()
    runtime.close()


def test_a_shutdown_says_why_the_node_could_not_deactivate(managed, monkeypatch):
    logged = []
    monkeypatch.setattr(managed.get_logger(), 'error', logged.append)
    assert managed.run_transition('configure') and managed.run_transition('activate')
    managed.trigger_shutdown()
    managed._log_failure()
    assert logged == ['cannot deactivate: the drain failed']


def test_a_failure_is_forgotten_with_the_next_transition(managed):
    assert managed.run_transition('configure') and managed.run_transition('activate')
    assert not managed.run_transition('deactivate')
    managed.deactivate = lambda: None
    assert managed.run_transition('deactivate')
