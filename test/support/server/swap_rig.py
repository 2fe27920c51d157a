# SPDX-License-Identifier: Apache-2.0
"""A server core whose policy is swapped, with an inference thread of its own. No ROS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import queue
import threading

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.policies.base import LoadOptions, PolicyDescription
from lerobot_serve.server.messages import SwapState
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.policy_swap import PolicySwap
from support.server.fake_policy import FakePolicy
from support.server.server_core_rig import request, Rig

KIND = 'fake'
LIMIT_S = 30.0
OLD, NEW = 'pick@1', 'pick@2'


class SwapObserver(RequestObserver):
    """Keeps what it hears of swaps."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, str]] = []

    def on_swapped(self, before: str, description: PolicyDescription) -> None:
        self.heard.append((before, description.fingerprint))

    def on_swap_failed(self, why: str) -> None:
        self.heard.append(('failed', why))


class SwapRig:
    """
    The node of a PolicySwap, which loads in the thread of the test. `policies` are what the
    folders hold, a function is called to load; `statuses` are published: state, policy.
    """

    def __init__(self, root: Path, **served: object) -> None:
        self.root = root
        self.parameters = ServerParameters(
            policy_kind=KIND, policy_path=str(root / 'old'), policy_root=str(root)
        )
        self.observer = SwapObserver()
        self.served = Rig(observer=lambda _: self.observer, fingerprint=OLD, **served)
        self.core = self.served.core
        self.core.worker.kind = KIND
        self.inactive_reason = ''
        self.statuses: list[tuple[SwapState, str]] = []
        self.folders: list[Path] = []
        self.logged: list[str] = []
        self.policies: dict[str, FakePolicy | Callable[[], FakePolicy]] = {}
        self.chunks: queue.Queue[Chunk] = queue.Queue()
        self.stop = threading.Event()
        self.swap = PolicySwap(
            self,
            self.served.request_queue,
            self.served.statistics,
            self.observer,
            start_thread=lambda name, target: target(),
            stop=self.stop,
        )

    # the node

    def on_swap_status(self) -> None:
        self.statuses.append((self.swap.status.state, self.core.description.fingerprint))

    def on_swapped(self, folder: Path) -> None:
        self.folders.append(folder)

    def log_info(self, text: str) -> None:
        self.logged.append(text)

    def log_warning(self, text: str) -> None:
        self.logged.append(text)

    # what a test does

    def add(self, name: str, policy: FakePolicy | Callable[[], FakePolicy]) -> None:
        """Let a folder hold a policy."""
        (self.root / name).mkdir()
        self.policies[name] = policy

    def load(self, kind: str, options: LoadOptions) -> FakePolicy:
        found = self.policies[Path(options.path).name]
        return found if isinstance(found, FakePolicy) else found()

    def run(self, name: str = 'new') -> tuple[SwapState, str]:
        """Swap to a folder, and return how it ended."""
        self.swap.begin(name)
        return self.swap.status.state, self.swap.status.text

    def ask(self, seq: int = 3, number: int = 1, **header: object) -> Chunk:
        """Return the answer to one request of a robot."""
        return self.ask_raw(request(number, seq=seq, **header))

    def ask_raw(self, raw: bytes) -> Chunk:
        assert self.core.enqueue(raw, 0) is None
        return self.chunks.get(timeout=LIMIT_S)

    def infer(self) -> None:
        """The loop of the inference thread."""
        while batch := self.served.request_queue.take_batch():
            for queued, chunk in self.core.worker.process(batch):
                self.chunks.put(chunk)
                if queued.on_reply:
                    queued.on_reply(chunk)

    def __enter__(self) -> SwapRig:
        self._thread = threading.Thread(target=self.infer)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.served.request_queue.close()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        self.core.worker.close()
