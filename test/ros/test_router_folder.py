"""Where a router keeps its placements: shared, missing, torn, full."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
import resource
import signal
import subprocess

from log_lines import ours
from router_manager import assert_well_ended, Manager

from lerobot_serve.router.decisions import decision
from lerobot_serve.router.journal import Journal
from lerobot_serve.router.split import bucket

LOADED = 2000


def test_two_routers_never_share_a_folder(router_rig, tmp_path):
    def start(name: str, **more: object) -> subprocess.Popen:
        return router_rig.fleet.start(
            name,
            'policy_router',
            namespace=f'/{name}',
            slot_prod="['/a/policy_server']",
            state_folder=tmp_path / 'kept',
            settle_s=0.0,
            **more,
        )

    first = start('first')
    router_rig.wait(lambda: 'slot prod' in router_rig.log('first'), 'the first one runs')
    second, idle = start('second'), start('idle', autostart=False)
    assert second.wait(30) == 1
    (line,) = ours(router_rig.log('second'))
    assert 'give each a state_folder of its own' in line
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
    """Fill the file of placements, as a router before would have; return the episodes."""
    folder.mkdir()
    journal = Journal(folder / 'placements.jsonl', count, print)
    journal.load()
    placed = OrderedDict()
    for number in range(count):
        name = f'before-{number}'
        # wherever the split would put it
        placed[name] = decision(bucket(name), 'b', 50, False, 'a test')
        journal.add(name, placed[name], placed)
    journal.close()
    return list(placed)


def tear(file: Path, line: int) -> None:
    """Damage one line, and take away the end of the last one."""
    lines = file.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line][:7] + b'\xff\n'
    file.write_bytes(b''.join(lines)[:-9])


def test_a_torn_file_and_a_full_disk_are_said_once_and_robots_go_on(router_rig, tmp_path):
    names = write_placements(tmp_path / 'kept', LOADED)
    file = tmp_path / 'kept' / 'placements.jsonl'
    tear(file, 10)
    router_rig.slots(state_folder=tmp_path / 'kept')
    assert router_rig.log('router').count('placements.jsonl was damaged') == 1
    client, pid = router_rig.robot(), router_rig.fleet.processes['router'].pid
    in_a = next(name for name in names[20:] if bucket(name) < 50)
    assert client.round_trip(episode_id=in_a).slot == 'b'

    whole = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    # what is smaller, its log for example, still has room
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (file.stat().st_size // 2, whole[1]))
    lost = [router_rig.episode('b', salt=f'full{number}') for number in range(20)]
    assert {client.round_trip(episode_id=name).slot for name in lost} == {'b'}
    router_rig.wait(lambda: 'cannot be written' in router_rig.log('router'), 'it is said')
    assert router_rig.log('router').count('cannot be written') == 1

    resource.prlimit(pid, resource.RLIMIT_FSIZE, whole)
    # the file is written anew, some lines with each new episode
    after = [router_rig.episode('b', salt=f'room{number}') for number in range(4)]
    assert {client.round_trip(episode_id=name).slot for name in after} == {'b'}
    router_rig.kill('router')
    router_rig.router(
        slot_a=['a'], slot_b=['b'], state_folder=tmp_path / 'kept', split_percent=100
    )
    client.ask = replace(client.ask, session_epoch=2)
    client.open()
    for name in (in_a, lost[0], lost[-1], after[-1]):
        assert client.round_trip(episode_id=name).slot == 'b'
    assert client.round_trip(episode_id='new').slot == 'a'
