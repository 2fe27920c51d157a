# SPDX-License-Identifier: Apache-2.0
"""Where a router keeps its placements: shared, missing, torn, full."""

from __future__ import annotations

from pathlib import Path
import resource
import signal
import subprocess

from msgspec.structs import replace
import pytest
from support.nodes.router_manager import assert_well_ended, Manager
from support.processes.log_lines import ours

from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.records import Batch, stored_placement
from lerobot_serve.router.storage.sqlite_store import FILE, SqliteStore
from lerobot_serve_interfaces.srv import ControlSlot

LOADED = 2000
# of the store; the router's log is shorter
PAGE_BYTES = 4096


def test_two_routers_never_share_a_folder(router_rig, tmp_path):
    def start(name: str, **more: object) -> subprocess.Popen:
        return router_rig.fleet.start(
            name,
            'policy_router',
            namespace=f'/{name}',
            slot_prod="['/a/policy_server']",
            state_folder=tmp_path / 'kept',
            discovery_timeout_s=0.0,
            **more,
        )

    first = start('first')
    router_rig.wait(lambda: 'slot prod' in router_rig.log('first'), 'the first one runs')
    second, idle = start('second'), start('idle', autostart=False)
    assert second.wait(30) == 1
    (line,) = ours(router_rig.log('second'))
    owner = f'in use by /first/policy_router (process {first.pid} on '
    assert owner in line and 'set another state_folder' in line
    # one that waits for its manager can be helped
    manager = Manager(router_rig, '/idle/policy_router')
    assert not manager.change('configure')
    assert 'cannot configure: ' in router_rig.log('idle')
    first.send_signal(signal.SIGINT)
    assert_well_ended(router_rig, 'first', first)
    manager.changes('configure')
    idle.send_signal(signal.SIGINT)
    assert_well_ended(router_rig, 'idle', idle)


def test_a_folder_that_cannot_be_made_is_refused_in_one_line(router_rig, tmp_path):
    (tmp_path / 'file').touch()
    folders = tmp_path / 'file', tmp_path / 'file' / 'below', '~nobody_of_that_name/x'
    for number, folder in enumerate(folders):
        name = f'router_{number}'
        process = router_rig.fleet.start(
            name, 'policy_router', namespace=f'/x{number}', state_folder=folder
        )
        assert process.wait(30) == 1
        (line,) = ours(router_rig.log(name))
        assert line.startswith('error: state_folder ')


def write_placements(folder: Path, count: int) -> list[str]:
    """Fill the store, as a router before would have; return the episodes."""
    # wherever the split would put it
    placed = {
        f'before-{n}': stored_placement(bucket(f'before-{n}'), 'b', 50, False, 'a test')
        for n in range(count)
    }
    store = SqliteStore(folder, count, 'before')
    store.write(Batch(placements=dict(placed)))
    store.close()
    return list(placed)


def damage(file: Path) -> None:
    """Change one placement and nothing else."""
    data = file.read_bytes()
    at = data.index(b'before-10b')
    file.write_bytes(data[:at] + b'B' + data[at + 1 :])


@pytest.mark.slow
def test_a_damaged_store_and_a_full_disk_are_said_once_and_robots_go_on(router_rig, tmp_path):
    names = write_placements(tmp_path / 'kept', LOADED)
    file = tmp_path / 'kept' / FILE
    damage(file)
    router_rig.slots(state_folder=tmp_path / 'kept')
    log = router_rig.log('router')
    assert log.count('state store damaged') == 1
    assert '1 changed placements are discarded' in log
    # no decision was damaged: both slots take episodes
    client, pid = router_rig.robot(), router_rig.fleet.processes['router'].pid
    in_a = next(name for name in names[20:] if bucket(name) < 50)
    assert client.round_trip(episode_id=in_a).slot == 'b'

    whole = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    # not even one row has room, however many rows a commit holds; its log has
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (PAGE_BYTES, whole[1]))
    lost = [router_rig.episode('b', salt=f'full{number}') for number in range(20)]
    assert {client.round_trip(episode_id=name).slot for name in lost} == {'b'}
    # what keeps a policy from robots acts, and says that it is not durable
    answer = router_rig.control(ControlSlot.Request.DRAIN, 'b')
    assert answer.success and 'NOT DURABLE' in answer.text
    answer = router_rig.control(ControlSlot.Request.RESTORE, 'b')
    assert not answer.success and 'stays drained' in answer.text
    assert client.round_trip(episode_id=router_rig.episode('b', salt='x')).slot == 'a'
    router_rig.wait(lambda: 'not durable' in router_rig.state.text, 'the state says it')
    assert router_rig.log('router').count('routing continues') == 1

    resource.prlimit(pid, resource.RLIMIT_FSIZE, whole)
    router_rig.wait(lambda: 'not durable' not in router_rig.state.text, 'it is writable again')
    router_rig.kill('router')
    router_rig.router(
        slot_a=['a'], slot_b=['b'], state_folder=tmp_path / 'kept', split_percent=100
    )
    client.ask = replace(client.ask, session_epoch=2)
    client.open()
    assert 'slot b is drained: a test' in router_rig.log('router')
    for name in (in_a, lost[0], lost[-1]):
        assert client.round_trip(episode_id=name).slot == 'b'
    assert client.round_trip(episode_id='new').slot == 'a'
