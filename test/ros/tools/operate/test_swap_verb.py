# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve swap` with a real server."""

from __future__ import annotations

import pytest
from support.nodes.operator import one_client, Operator
from support.nodes.steering import Steering

from lerobot_serve_interfaces.msg import ServerStatus

pytestmark = pytest.mark.long


@pytest.fixture
def new(tmp_path):
    made = Steering(tmp_path / 'new')
    yield made
    made.open_gates()
    made.end()


def test_a_policy_is_swapped_by_an_operator(rig, new, tmp_path, capsys, monkeypatch):
    rig.start(policy_kind='steered', policy_root=str(tmp_path))
    operator, before = Operator(capsys), rig.status().policy
    path = new.folder_path()
    with one_client(monkeypatch):
        assert 'add --yes' in operator.needs_yes('swap', '/policy_server', path)
        refusal = operator.is_refused('swap', '/policy_server', '/elsewhere', '--yes')
        assert 'copy the policy there. Nothing was changed' in refusal
        assert 'did you mean /policy_server?' in operator.is_refused_within(
            '1', 'swap', '/policy_servr', path, '--yes'
        )
        text = operator.does('swap', 'policy_server', path, '--wait')
    after = rig.status()
    assert after.policy != before
    assert f'policy: {before} -> {after.policy}' in text
    assert after.swap == ServerStatus.SWAP_DONE
