# SPDX-License-Identifier: Apache-2.0
"""
Load another policy beside the served one, then let the inference thread switch between two
batches. On any failure the served policy continues.

The executor thread begins a swap; the thread `swap` loads, one swap at a time; the status may be
read in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import replace
from functools import partial
import os
from pathlib import Path
import sys
import threading

from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError
from lerobot_serve.policies.error_text import one_line
from lerobot_serve.policies.lerobot.hub import hub_policy
from lerobot_serve.policies.runtime import memory, memory_reservation
from lerobot_serve.policies.runtime.loading_beside import beside_served_policy
from lerobot_serve.policies.runtime.memory import NotEnoughMemory
from lerobot_serve.policies.runtime.memory_reservation import MemoryReservation
from lerobot_serve.server.core import ServerCore
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.inference.policy_loading import LoadedPolicy
from lerobot_serve.server.inference.request_queue import QueueClosed, RequestQueue
from lerobot_serve.server.inference.worker import InferenceWorker
from lerobot_serve.server.messages import ServerNode, SwapState, SwapStatus
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_table import PolicyRequired
from lerobot_serve.server.swap_contract import contract_differences, PolicyContract
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.layout import Layout
from lerobot_serve.versions.store import find_id


class SwapRefused(Exception):
    """A swap that is not possible; the text has the cause and what to do."""


def folder_below(root: str, given: str) -> Path:
    """
    Return the real path of a folder below `root`, given relative to it or absolute; where the root
    is a store, a version may be given as everywhere. Raises SwapRefused.
    """
    if not root:
        raise SwapRefused(
            'policy_root is empty, so that the policy cannot change while the server runs; '
            'restart it with policy_root, the folder below which its policies are'
        )
    if not given or '\0' in given:
        raise SwapRefused(
            f'policy_path must name a folder below policy_root ({root!r}), got {given!r:.80}'
        )
    real_root = Path(root).resolve()
    given = version_of(real_root, given)
    # resolve() follows links, so that a link to outside of the root is refused
    folder = (real_root / given).resolve()
    if not folder.is_relative_to(real_root) or folder == real_root:
        raise SwapRefused(
            f'policy_path must be below policy_root ({root!r}), got {given!r}, which is '
            f'{str(folder)!r}; copy the policy there'
        )
    if not folder.is_dir():
        raise SwapRefused(
            f'{str(folder)!r} is not a folder; give that of a policy below policy_root ({root!r})'
        )
    return folder


def version_of(root: Path, given: str) -> str:
    """Return the id of a version that is given in another way; `given` for anything else."""
    if '/' in given or (root / given).exists() or not Layout(root).lock.is_file():
        return given
    try:
        return find_id(given, Layout(root).ids(), f'the store {root}')
    except VersionError as error:
        raise SwapRefused(str(error)) from None


def check_policy_path_change(present: ServerParameters, wanted: ServerParameters) -> None:
    """Raise ParameterError for a policy_path outside the policy_root set at start."""
    if wanted.policy_path == present.policy_path:
        return
    root = present.policy_root
    if not root:
        raise ParameterError(
            f'policy_path is fixed at start ({present.policy_path!r}); restart the node with the '
            'new value, or with policy_root, the folder below which it may change'
        )
    if hub_policy(wanted.policy_path):
        raise ParameterError(
            f'policy_path {wanted.policy_path!r} is not a folder; a policy of the Hugging Face '
            f'hub is named at start, at runtime give a folder below policy_root ({root!r})'
        )
    # resolve() follows links, so that a link to outside of the folder is refused
    if not Path(wanted.policy_path).resolve().is_relative_to(Path(root).resolve()):
        raise ParameterError(
            f'policy_path must be below policy_root ({root!r}), got {wanted.policy_path!r}; copy '
            'the policy there'
        )


SHOWN_CLIENTS = 3
# of the processor: the scheduler prefers the threads that serve
NICENESS = 10
# of the interpreter: the thread that serves waits this long for its lock, by default 5 ms
SWITCH_INTERVAL_S = 0.0005
REPLICA_BY_REPLICA = (
    'load it replica by replica instead: deactivate and clean up this server, set policy_path, '
    'configure and activate it, then do the same with the next one'
)


class AlreadyServed(Exception):
    """The given folder holds the policy that is served."""


class SwapCancelled(Exception):
    """The server does not serve any more; the text says why."""


class PolicySwap:
    """See the module. `start_thread` starts a thread of the node, `stop` is set at its end."""

    def __init__(
        self,
        node: ServerNode,
        request_queue: RequestQueue,
        statistics: ServerStatistics,
        observer: RequestObserver,
        *,
        start_thread: Callable[[str, Callable[[], None]], object],
        stop: threading.Event,
    ) -> None:
        self._node, self._request_queue = node, request_queue
        self._statistics, self._observer = statistics, observer
        self._start_thread, self._stop = start_thread, stop
        self.status = SwapStatus()

    # executor and transition threads

    def begin(self, given: str) -> str:
        """Begin to load a policy, and return what follows. Raises SwapRefused."""
        core = self._node.core
        if core is None or self._node.inactive_reason:
            raise SwapRefused(
                f'the server does not serve ({self._node.inactive_reason}): activate it, and swap '
                'then; or set policy_path while it is unconfigured'
            )
        if self.status.state is SwapState.LOADING:
            raise SwapRefused(f'{self.status.text}; wait until ServerStatus.swap says how it ends')
        folder = folder_below(self._node.parameters.policy_root, given)
        text = f'loading {folder} beside {core.description.fingerprint}'
        self._set(SwapStatus(SwapState.LOADING, text))
        self._start_thread('swap', partial(self._run, core, folder))
        return f'{text}; ServerStatus.swap says how it ends'

    def reset(self) -> None:
        """Forget the last swap: another policy was loaded. One that still loads will fail."""
        if self.status.state is not SwapState.LOADING:
            self.status = SwapStatus()

    # thread `swap`

    def _run(self, core: ServerCore, folder: Path) -> None:
        status = self._attempt(core, folder)
        # what was replaced, or did not replace, is not referenced any more
        memory.release_unused()
        self._statistics.record_swap(status.state.name.lower())
        log = self._node.log_info if status.state is SwapState.DONE else self._node.log_warning
        log(f'swap of the policy {status.state.name.lower()}: {status.text}')
        self._set(status)

    def _attempt(self, core: ServerCore, folder: Path) -> SwapStatus:
        """Load and switch; return how it ended."""
        before = core.description.fingerprint
        try:
            with beside_served_policy(), in_background():
                self._wait_for_batch()
                loaded = self._load(core, folder)
            old = self._switch(core, loaded)
        except AlreadyServed:
            return SwapStatus(SwapState.DONE, f'{before} is served already; nothing was changed')
        except NotEnoughMemory as error:
            why = f'{error}; or {REPLICA_BY_REPLICA}'
        except (PolicyError, SwapRefused, SwapCancelled) as error:
            why = str(error)
        except Exception as error:
            # code of another package may raise any error; the served policy continues
            why = one_line(error)
        else:
            # what is slow comes after the switch: the new policy serves meanwhile
            self._follow_up(before, loaded.worker.description, folder)
            self._close(old)
            after = loaded.worker.description.fingerprint
            return SwapStatus(SwapState.DONE, f'{after} has replaced {before}')
        self._observer.on_swap_failed(why)
        return SwapStatus(SwapState.FAILED, f'{before} continues: {why}')

    def _wait_for_batch(self) -> None:
        """
        Wait for the end of the batch that runs: from the next one on, requests draw their random
        numbers from generators of their own. Raises SwapCancelled.
        """
        try:
            self._request_queue.run_job(lambda: None)
        except QueueClosed as error:
            raise SwapCancelled(str(error)) from None

    def _load(self, core: ServerCore, folder: Path) -> LoadedPolicy:
        parameters = replace(self._node.parameters, policy_path=str(folder))
        return policy_loading.load_policy(
            parameters, str(folder), self._statistics, self._reserve, partial(self._check, core)
        )

    def _reserve(self, options: LoadOptions) -> MemoryReservation:
        """Reserve memory beside what the served policy holds. Raises PolicyError."""
        return memory_reservation.reserve(
            options, log_warning=self._node.log_warning, wait_for_stop=self._wait_for_stop
        )

    def _wait_for_stop(self, seconds: float) -> bool:
        return self._stop.wait(seconds) or bool(self._node.inactive_reason)

    def _check(self, core: ServerCore, kind: str, description: PolicyDescription) -> None:
        """Raise AlreadyServed, or SwapRefused for a policy that may not replace the served one."""
        served = core.description
        if description.fingerprint == served.fingerprint:
            raise AlreadyServed
        differences = contract_differences(
            PolicyContract(core.worker.kind, served), PolicyContract(kind, description)
        )
        if differences:
            raise SwapRefused(
                f'{description.fingerprint} may not replace {served.fingerprint} while robots '
                f'use it: {differences}; give a policy of the same contract, or '
                f'{REPLICA_BY_REPLICA}'
            )
        try:
            core.sessions.check_required(description)
        except PolicyRequired as error:
            raise _required(error, served) from None

    def _switch(self, core: ServerCore, loaded: LoadedPolicy) -> InferenceWorker:
        """
        Let the inference thread switch; return the worker of the replaced policy. Raises
        SwapCancelled, SwapRefused.
        """
        before = core.description
        try:
            return self._request_queue.run_job(partial(self._replace, core, loaded))
        except BaseException as error:
            loaded.worker.close()
            if isinstance(error, PolicyRequired):
                raise _required(error, before) from None
            if isinstance(error, QueueClosed):
                raise SwapCancelled(str(error)) from None
            raise

    def _replace(self, core: ServerCore, loaded: LoadedPolicy) -> InferenceWorker:
        """
        Switch, and publish it before the first chunk of the new policy. Inference thread, between
        two batches. Raises SwapCancelled, PolicyRequired.
        """
        if self._node.core is not core or self._node.inactive_reason:
            raise SwapCancelled(
                f'the server has stopped to serve meanwhile ({self._node.inactive_reason}); '
                'activate it, and swap again'
            )
        old = core.replace_worker(loaded.worker)
        self._statistics.reset_for_policy(loaded.service_s)
        self._publish()
        return old

    def _follow_up(self, before: str, description: PolicyDescription, folder: Path) -> None:
        """Report the switch. Raises nothing: the new policy serves already."""
        try:
            self._node.on_swapped(folder)
            self._observer.on_swapped(before, description)
        except Exception as error:
            self._node.log_warning(f'a report of the swap failed: {one_line(error)}')
        for note in description.notes:
            self._node.log_warning(note)

    def _close(self, old: InferenceWorker) -> None:
        """Close a replaced policy, by the thread that predicts."""
        try:
            self._request_queue.run_job(old.close)
        except QueueClosed:
            old.close()
        except Exception:
            # an error of a third-party policy; it is unloaded in any case
            self._statistics.record_drop('close_failed')

    def _set(self, status: SwapStatus) -> None:
        self.status = status
        self._publish()

    def _publish(self) -> None:
        """Publish the status. Raises nothing: the swap continues, or has switched already."""
        try:
            self._node.on_swap_status()
        except Exception as error:
            self._node.log_warning(
                f'the status of the swap was not published: {one_line(error)}; the next status, '
                'after status_period_s, has it'
            )


def _required(error: PolicyRequired, served: PolicyDescription) -> SwapRefused:
    names = ', '.join(error.clients[:SHOWN_CLIENTS])
    more = len(error.clients) - SHOWN_CLIENTS
    return SwapRefused(
        f'{names}{f" and {more} more" if more > 0 else ""} required {served.fingerprint} when '
        'their sessions were opened; end them, or leave required_policy of the robots empty'
    )


@contextlib.contextmanager
def in_background() -> Iterator[None]:
    """
    Run the block behind the other threads, so that loading does not delay the one that serves; the
    calling thread stays behind them for good.
    """
    with contextlib.suppress(OSError):
        # Linux: of this thread and those that it starts
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(min(before_s, SWITCH_INTERVAL_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before_s)
