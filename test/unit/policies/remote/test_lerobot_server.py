# SPDX-License-Identifier: Apache-2.0
"""LeRobot's own server behind the kind `lerobot_async`: the chunks are those of its policy."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.network.ports import free_port
from support.policies.lerobot_policy_server import lerobot_server
from support.policies.lerobot_rig import folder_of, loaded, NAMES, requests_for
import yaml

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions
from lerobot_serve.policies.remote.peer import PeerRefused, PeerUnavailable

pytestmark = pytest.mark.slow


def contract(policy_folder: str, port: int) -> dict[str, object]:
    """Return the contract of the tiny ACT policy."""
    own = loaded('act').describe()
    return {
        'url': f'grpc://127.0.0.1:{port}',
        'name': 'act_elsewhere',
        'policy_type': 'act',
        'pretrained_name_or_path': policy_folder,
        'state_names': list(NAMES),
        'action_names': list(NAMES),
        'cameras': {c.name: {'height': c.height, 'width': c.width} for c in own.cameras},
        'chunk_steps': own.chunk_size,
        'control_hz': 30,
        'connect_timeout_s': 60,
        'predict_timeout_s': 20,
    }


def test_chunks_are_those_of_the_policy_until_the_server_dies(tmp_path):
    own, port = loaded('act'), free_port()
    file = tmp_path / 'contract.yaml'

    def load(**changes: object):
        file.write_text(yaml.safe_dump(contract(str(folder_of('act')), port) | changes))
        return registry.load('lerobot_async', LoadOptions(str(file)))

    with pytest.raises(PeerUnavailable):
        load()
    requests = requests_for(own, 3)
    with lerobot_server(tmp_path, port):
        with pytest.raises(PeerRefused, match='no_such_type'):
            load(policy_type='no_such_type')
        policy = load()
        try:
            for request in [*requests, requests[0]]:
                # the same observation again: its filter of similar ones is passed by
                (ours,), (theirs,) = own.predict([request]), policy.predict([request])
                assert np.allclose(theirs.robot, ours.robot, atol=1e-4)
        except BaseException:
            policy.close()
            raise
    try:
        with pytest.raises(PeerUnavailable):
            policy.predict(requests[:1])
    finally:
        policy.close()
