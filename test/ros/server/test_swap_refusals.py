# SPDX-License-Identifier: Apache-2.0
"""
Versions that a running server must not swap in: each is refused with what to do, counted and in
the trace, and the served one continues.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import shutil

import pytest
from support.network.metrics_page import page
from support.network.ports import free_port
from support.nodes.swapping import FAILED, Swapper
from support.versions.version_rig import damage
from support.waiting import wait_until

from lerobot_serve.ros.package_share import shared_file
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve.versions.store import VersionStore

pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')

FAILED_SWAPS = 'lerobot_serve_server_policy_swaps_total{outcome="failed"'


def with_other_order(folder: Path) -> None:
    """Let a policy have its joints in another order."""
    file = folder / 'policy.json'
    content = json.loads(file.read_text())
    for name in ('state_names', 'action_names'):
        content[name] = content[name][::-1]
    file.write_text(json.dumps(content))


def without_statistics(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    file = folder / 'model.safetensors'
    weights = {name: each for name, each in load_file(file).items() if name != 'offset_std'}
    file.unlink()
    save_file(weights, file)


def unchanged(folder: Path) -> None:
    """Let a policy differ in one bit, which is damaged in the store."""
    file = folder / 'model.safetensors'
    content = bytearray(file.read_bytes())
    content[-4] ^= 1
    file.write_bytes(content)


REFUSED: dict[str, tuple[Callable[[Path], None], str, str]] = {
    'order': (with_other_order, 'action names: ', 'give a policy of the same contract'),
    'statistics': (without_statistics, 'offset_std', 'copy'),
    'hash': (unchanged, 'has another SHA-256', 'Delete it and fetch it again'),
}


@pytest.fixture
def store(tmp_path) -> VersionStore:
    """A store with the policy that is served."""
    folder = tmp_path / 'store'
    publish(Path(shared_file('config/policies/reach')), folder)
    return VersionStore.open(folder)


def publish(policy: Path, store: Path) -> None:
    words = ['versions', 'publish', str(policy), '--store', str(store), '--follow-links']
    assert main(words) == 0


def changed(folder: Path, change: Callable[[Path], None]) -> Path:
    """Return a copy of the served policy with a change."""
    shutil.copytree(Path(shared_file('config/policies/reach')), folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    change(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', REFUSED)
def test_a_version_that_may_not_be_served_is_refused_counted_and_traced(
    rig, node, store, tmp_path, name
):
    change, fault, remedy = REFUSED[name]
    (served,) = store.ids()
    publish(changed(tmp_path / 'changed', change), store.folder)
    (other,) = set(store.ids()) - {served}
    if change is unchanged:
        damage(store, other)
    port = free_port()
    rig.start(
        policy_path=str(store.path(served)),
        policy_root=str(store.folder),
        metrics_port=port,
        trace_folder=tmp_path / 'trace',
    )
    swapper = Swapper(node)
    assert swapper.begin(other).accepted
    status = swapper.ended()
    assert (status.swap, status.policy) == (FAILED, served)
    assert fault in status.swap_text and remedy in status.swap_text
    (line,) = (x for x in page(port, '/metrics').splitlines() if x.startswith(FAILED_SWAPS))
    assert line.endswith(' 1.0')
    rig.end()
    (file,) = (tmp_path / 'trace').glob('*.jsonl')

    def incidents() -> list[dict]:
        records = (record for _, record in read_records(file) if record['kind'] == 'incident')
        return [record for record in records if record['name'] == 'swap_failed']

    # the trace is written a moment later
    (incident,) = wait_until(incidents, 'the incident is in the trace')
    assert incident['reason'] in status.swap_text
