# SPDX-License-Identifier: Apache-2.0
"""A running server replaces its policy: sessions stay open, and failures change nothing."""

from __future__ import annotations

from pathlib import Path
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.nodes.steering import Steering
from support.nodes.swapping import DONE, FAILED, LOADING, Swapper
from support.versions.version_rig import check_whole, damage

from lerobot_serve.contract.image_codec import encode as encode_image
from lerobot_serve.contract.schema import Codec, Flag, Status
from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve.versions.errors import VersionInUse
from lerobot_serve.versions.store import VersionStore

CHANGED = Flag.POLICY_CHANGED


@pytest.fixture
def new(rig, tmp_path):
    """Another policy below the same root."""
    made = Steering(tmp_path / 'new')
    yield made
    made.open_gates()
    made.end()


@pytest.fixture
def swapper(node) -> Swapper:
    return Swapper(node)


def start(rig, tmp_path: Path, **parameters: object):
    return rig.start(policy_kind='steered', policy_root=str(tmp_path), **parameters)


def test_the_old_policy_serves_until_the_new_one_does(rig, new, swapper, tmp_path):
    new.loads.close_gate()
    start(rig, tmp_path)
    client, other = rig.client('one'), rig.client('two')
    before = rig.status()
    assert (before.swap, before.swap_text) == (0, '')
    first = client.round_trip()
    assert (first.policy, first.header.flags) == (before.policy, Flag.NONE)

    reply = swapper.begin(new.folder_path())
    assert reply.accepted
    assert 'ServerStatus.swap says how it ends' in reply.text
    rig.wait(lambda: new.events('load'), 'it is being loaded')
    status = rig.status()
    assert (status.swap, status.policy) == (LOADING, before.policy)
    assert [client.round_trip().policy for _ in range(3)] == [before.policy] * 3
    assert rig.client('late').round_trip().policy == before.policy
    again = swapper.begin(new.folder_path())
    assert not again.accepted
    assert 'wait until ServerStatus.swap says how it ends' in again.text

    new.loads.let()
    after = swapper.ended()
    assert (after.swap, after.state) == (DONE, before.state)
    assert after.policy != before.policy
    assert after.swap_text == f'{after.policy} has replaced {before.policy}'
    assert after.active_sessions == 3
    chunks = [each.round_trip() for each in (client, client, other, other)]
    assert {chunk.policy for chunk in chunks} == {after.policy}
    assert [chunk.header.flags for chunk in chunks] == [CHANGED, 0, CHANGED, 0]
    # the state of the sessions at the old policy has gone with it
    assert rig.wait(lambda: rig.steering.events('freed'), 'the old policy is freed')
    assert rig.drops() == {}
    assert swapper.policy_path == str(new.folder)
    fresh = rig.client('fresh').round_trip()
    assert (fresh.policy, fresh.header.flags) == (after.policy, Flag.NONE)


def test_what_fails_leaves_the_served_policy_and_says_why(rig, new, swapper, tmp_path):
    start(rig, tmp_path)
    client, before = rig.client(), rig.status()
    reply = swapper.begin(new.folder_path(chunk=7))
    assert reply.accepted
    status = swapper.ended()
    assert (status.swap, status.policy) == (FAILED, before.policy)
    assert 'chunk size: 30 served, 7 given' in status.swap_text
    assert 'replica by replica' in status.swap_text
    (tmp_path / 'empty').mkdir()
    assert swapper.begin('empty').accepted
    # its kind is written nowhere; the plugin takes any folder
    assert swapper.ended().swap == DONE
    chunk = client.round_trip()
    assert (chunk.status, chunk.header.flags) == (Status.OK, CHANGED)


def test_a_signal_while_a_swap_loads_ends_the_server_in_order(rig, new, swapper, tmp_path):
    new.loads.close_gate()
    process = start(rig, tmp_path)
    assert swapper.begin(new.folder_path()).accepted
    rig.wait(lambda: new.events('load'), 'it is being loaded')
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize('moment', ['loading', 'switched'])
def test_a_killed_server_starts_with_the_policy_of_its_parameters(
    rig, new, swapper, tmp_path, moment
):
    if moment == 'loading':
        new.loads.close_gate()
    process = start(rig, tmp_path)
    before = rig.status().policy
    assert swapper.begin(new.folder_path()).accepted
    if moment == 'loading':
        rig.wait(lambda: new.events('load'), 'it is being loaded')
    else:
        rig.wait(lambda: rig.status().policy != before, 'it has switched')
    process.kill()
    process.wait(60)
    start(rig, tmp_path)
    status = rig.status()
    assert (status.policy, status.swap) == (before, 0)
    assert rig.client().round_trip().policy == before


# versions of a store


@pytest.fixture
def store(tmp_path) -> VersionStore:
    """A store with two versions of one policy."""
    pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
    from safetensors.numpy import load_file, save_file

    reach, other = Path(shared_file('config/policies/reach')), tmp_path / 'other'
    shutil.copytree(reach, other)
    file = other / 'model.safetensors'
    weights = load_file(file)
    name = next(name for name, weight in weights.items() if not name.endswith('_std'))
    weights[name] = weights[name] * 1.001
    file.unlink()
    save_file(weights, file)
    folder = str(tmp_path / 'store')
    for policy in (reach, other):
        words = ['versions', 'publish', str(policy), '--store', folder, '--follow-links']
        assert main(words) == 0
    return VersionStore.open(Path(folder))


@pytest.mark.slow
def test_the_hold_of_a_version_moves_with_the_swap(rig, swapper, store):
    first, second = store.ids()
    rig.start(policy_path=str(store.path(first)), policy_root=str(store.folder))
    assert rig.status().policy == first
    # by the digits of its hash, as everywhere
    assert swapper.run(second.partition('@')[2][:8]).policy == second
    with pytest.raises(VersionInUse):
        store.delete(second)
    store.delete(first)
    assert swapper.policy_path == str(store.path(second))


@pytest.mark.slow
def test_a_damaged_version_is_not_swapped_in(rig, swapper, store):
    first, second = store.ids()
    damage(store, second)
    rig.start(policy_path=str(store.path(first)), policy_root=str(store.folder))
    assert swapper.begin(second).accepted
    status = swapper.ended()
    assert (status.swap, status.policy) == (FAILED, first)
    assert 'is damaged: model.safetensors has another SHA-256' in status.swap_text


@pytest.mark.slow
def test_the_version_that_is_served_is_done_already(rig, swapper, store):
    first, _ = store.ids()
    rig.start(policy_path=str(store.path(first)), policy_root=str(store.folder))
    status = swapper.run(first)
    assert status.swap_text == f'{first} is served already; nothing was changed'


# a policy server serves a version that was published, served over HTTP and fetched


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
    return VersionStore.open(store)


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
    (version_id,) = fetched.ids()
    damage(fetched, version_id)
    rig.start(until='unconfigured', autostart=False, policy_path=str(fetched.path(version_id)))
    assert not rig.change_state('configure')
    text = rig.status().text
    assert 'is damaged: model.safetensors has another SHA-256' in text
    assert f'versions delete {version_id}' in text
