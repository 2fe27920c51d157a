# SPDX-License-Identifier: Apache-2.0
"""
Policy servers as the nodes around them meet them: a lifecycle, sessions, and the real check of a
version before it is loaded. One thread, but for the calls of the router's pool.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.tools.versions import identify
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.layout import VersionLock
from lerobot_serve.versions.store import is_version, lock_checked
from support.router.dispatch_rig import answer_bytes
from support.router.replica_rig import FakeReplica
from support.router.runtime_rig import status

LOAD_S, CHANGE_S = 20.0, 2.0
AFTER = {'deactivate': 'inactive', 'cleanup': 'unconfigured', 'activate': 'active'}


class NightServer:
    """One policy server of a slot."""

    def __init__(self, name: str, slot: str, path: Path) -> None:
        self.name, self.slot, self.path = name, slot, path
        self.client = FakeReplica(name)
        self.state, self.policy, self.text = 'unconfigured', '', ''
        self._lock: VersionLock | None = None
        for transition in ('configure', 'activate'):
            assert self.change(transition), self.text

    def change(self, transition: str) -> bool:
        """Run a transition; return whether it was possible."""
        if transition == 'configure':
            return self._configure()
        if transition in ('deactivate', 'cleanup'):
            self.client.restart()
        if transition == 'cleanup':
            self._unload()
        self.state = AFTER[transition]
        return True

    def _configure(self) -> bool:
        try:
            if is_version(self.path):
                self._lock = lock_checked(self.path)
            self.policy = identify(self.path).fingerprint
        except (VersionError, PolicyError) as error:
            self._unload()
            self.text = str(error)
            return False
        self.state, self.text, self.client.policy = 'inactive', '', self.policy
        return True

    def _unload(self) -> None:
        self.policy = ''
        if self._lock:
            self._lock.release()
            self._lock = None

    def close(self) -> None:
        self._unload()

    @property
    def status(self) -> ServerStatus:
        """What it publishes of itself."""
        found = status(self.name, self.policy, self.slot)
        state = ServerStatus.State.named(self.state)
        return replace(found, state=state, text=self.text, max_sessions=64)

    def reply(self, raw: bytes) -> bytes | None:
        """Return the chunk for a request; None where no session is open."""
        session = self.client.sessions.get(read_envelope(raw).client_id)
        if self.state != 'active' or not session:
            return None
        return answer_bytes(raw, policy=self.policy, slot=self.slot)
