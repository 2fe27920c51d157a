# SPDX-License-Identifier: Apache-2.0
"""A policy server serves a version that was published, served over HTTP and fetched."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.versions.version_rig import check_whole, damage

from lerobot_serve.contract.image_codec import encode as encode_image
from lerobot_serve.contract.schema import Codec, Status
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.processes.parent_death import end_with_parent
from lerobot_serve.versions.errors import VersionInUse
from lerobot_serve.versions.store import Store

REACH = shared_file('config/policies/reach')
COMMAND = [sys.executable, '-c', 'from lerobot_serve.tools.cli.main import main; exit(main())']
LIMIT_S = 60.0


@pytest.fixture
def fetched(tmp_path):
    """A store with a version from another one, over HTTP between processes."""
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    origin, store = tmp_path / 'origin', tmp_path / 'store'
    assert main(['versions', 'publish', str(REACH), '--store', str(origin), '--follow-links']) == 0
    command = [*COMMAND, 'versions', 'serve', '--port', '0', '--store', str(origin)]
    with subprocess.Popen(end_with_parent(command), stdout=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[-1]
            words = ['versions', 'fetch', 'reach', '--from', url, '--store', str(store)]
            assert main(words) == 0
            process.terminate()
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()
    return Store.open(store)


@pytest.mark.slow
def test_a_fetched_version_answers_and_is_kept_while_it_is_served(rig, fetched):
    (version_id,) = check_whole(fetched)
    process = rig.start(policy_path=str(fetched.path(version_id)))
    served = rig.describe()
    assert rig.status().policy == version_id
    pictures = [
        encode_image(each.name, np.zeros((each.height, each.width, 3), np.uint8), Codec.RAW)
        for each in served.cameras
    ]
    client = rig.client(
        cameras=tuple(served.cameras),
        state_names=tuple(served.state_names),
        action_names=tuple(served.action_names),
    )
    state = np.zeros((1, len(served.state_names)), np.float32)
    chunk = client.round_trip(state=state, images=tuple(pictures))
    assert chunk.status == Status.OK
    assert chunk.robot.shape == (served.chunk_size, len(served.action_names))
    with pytest.raises(VersionInUse, match='a policy server serves it'):
        fetched.delete(version_id)
    assert check_whole(fetched) == [version_id]
    process.kill()
    process.wait(LIMIT_S)
    fetched.delete(version_id)


def test_a_damaged_version_is_not_served(rig, fetched):
    (version_id,) = fetched.layout.ids()
    damage(fetched, version_id)
    rig.start(until='unconfigured', autostart=False, policy_path=str(fetched.path(version_id)))
    assert not rig.change_state('configure')
    text = rig.status().text
    assert 'is damaged: model.safetensors has another SHA-256' in text
    assert f'versions delete {version_id}' in text
