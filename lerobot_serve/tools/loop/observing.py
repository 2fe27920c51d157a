# SPDX-License-Identifier: Apache-2.0
"""
What the loop finds (versions, gate records, recordings, the router's state), and the verbs that it
runs, as processes that end with this one. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
from pathlib import Path
import signal
import threading
from typing import NamedTuple, TYPE_CHECKING

from lerobot_serve.child_process import DEVNULL, PIPE, Process, start, TimeoutExpired
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.gate_record import GateRecord, read_record, record_path
from lerobot_serve.tools.loop.decisions import rollout_facts, RolloutFacts
from lerobot_serve.tools.operate.names import resolve_router
from lerobot_serve.tools.processes import verb_command
from lerobot_serve.tools.versions import identify
from lerobot_serve.versions.errors import PublishError, VersionError
from lerobot_serve.versions.manifest import Manifest
from lerobot_serve.versions.store import VersionStore

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient


METADATA_FILE = 'metadata.yaml'


def versions(folder: Path) -> list[Manifest]:
    """Return the whole versions of a store, the newest last; none before it is made."""
    with contextlib.suppress(VersionError):
        return [each.manifest for each in VersionStore.open(folder).entries() if each.manifest]
    return []


def version_folder(store: Path, fingerprint: str) -> Path | None:
    """Return the folder of the version with this digest; None without one."""
    digest = digest_of(fingerprint)
    return next(
        (store / each.id for each in versions(store) if digest_of(each.id) == digest), None
    )


def fingerprint(folder: Path) -> str:
    """Return the fingerprint of the policy in a folder; empty if it has none."""
    with contextlib.suppress(PublishError, OSError):
        return identify(folder).fingerprint
    return ''


def gate_records(folder: Path, found: list[Manifest]) -> dict[str, GateRecord]:
    """Return the readable records of versions, by digest."""
    read = {digest_of(each.id): gate_record(folder, each.id) for each in found}
    return {digest: record for digest, record in read.items() if record}


def gate_record(folder: Path, version: str) -> GateRecord | None:
    """Return the record of a version; None without a readable one."""
    with contextlib.suppress(OSError, ValueError):
        return read_record(record_path(folder, version))
    return None


def newest_recordings(folder: Path, count: int) -> list[Path]:
    """Return the newest whole bags of a recorder's folder, the oldest of them first."""
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError):
        for bag in folder.iterdir():
            # the recorder writes it last
            with contextlib.suppress(OSError):
                found.append(((bag / METADATA_FILE).stat().st_mtime_ns, bag))
    return [bag for _, bag in sorted(found)[-count:]]


def router_observer(client: FleetClient, given: str) -> Callable[[], RolloutFacts]:
    """
    Return what returns the state of the router now, or why there is none; `given` is its name,
    empty for the only one.
    """
    name = ''

    def observe() -> RolloutFacts:
        nonlocal name
        try:
            if not name:
                name = resolve_router(given, client.find_routers(given), client.known_routers())
            return rollout_facts(client.router(name))
        except UserError as error:
            # another one may have its place
            name = ''
            return RolloutFacts(text=str(error))

    return observe


# a verb that takes steps says after Ctrl-C what is done and what is left
POLL_S, END_LIMIT_S = 0.5, 15.0
INTERRUPTED = 130


class VerbResult(NamedTuple):
    """How a verb ended: its exit status and what it printed."""

    status: int
    output: str
    errors: str


def run_verb(words: list[str], limit_s: float, stop: threading.Event) -> VerbResult:
    """
    Run a verb until it ends. It is interrupted when `stop` is set, and after `limit_s`: its status
    is 130 then.
    """
    process = start(
        verb_command(words),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        errors='replace',
        env={**os.environ, 'COLUMNS': '200'},
        # Ctrl-C reaches this process alone, which passes it on
        start_new_session=True,
    )
    waited_s = 0.0
    while True:
        try:
            output, errors = process.communicate(timeout=POLL_S)
            return VerbResult(process.returncode, output, errors)
        except TimeoutExpired:
            waited_s += POLL_S
        if stop.is_set():
            return _interrupted(process, 'the loop ends')
        if waited_s >= limit_s:
            return _interrupted(process, f'not done within {limit_s:g} s')


def _interrupted(process: Process[str], why: str) -> VerbResult:
    process.send_signal(signal.SIGINT)
    try:
        output, errors = process.communicate(timeout=END_LIMIT_S)
    except TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    return VerbResult(INTERRUPTED, output, f'{errors.rstrip()}\n{why}')
