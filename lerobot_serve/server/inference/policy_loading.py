# SPDX-License-Identifier: Apache-2.0
"""Load the policy that the parameters name, and warm it up. No ROS."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from pathlib import Path
from typing import NamedTuple

from lerobot_serve.contract.limits import FINGERPRINT_LIMIT
from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError
from lerobot_serve.policies.lerobot.hub import local_folder
from lerobot_serve.policies.registry import detect_kind
from lerobot_serve.policies.runtime import memory_reservation
from lerobot_serve.policies.runtime.memory_reservation import MemoryReservation
from lerobot_serve.server.inference.worker import InferenceFailed, InferenceWorker
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.store import is_version, lock_checked

# as in ServerStatus.msg
TYPE_LIMIT, DEVICE_LIMIT = 64, 32
# kinds that need a path; others may do without
KINDS_WITH_FILES = ('', 'builtin', 'exported', 'lerobot')
NO_POLICY_TEXT = (
    'policy_path is empty: no policy to serve; set this parameter to the directory of a policy '
    "(the demo's is config/policies/reach of this package)"
)


class LoadedPolicy(NamedTuple):
    """A worker that is warmed up, and the time of its last warm-up inference."""

    worker: InferenceWorker
    service_s: float


# of the kind and the description of a policy that is not warmed up yet; raises to refuse it
PolicyCheck = Callable[[str, PolicyDescription], None]


def load_worker(
    parameters: ServerParameters,
    default_path: str,
    statistics: ServerStatistics,
    reserve: Callable[[LoadOptions], MemoryReservation] = memory_reservation.reserve,
) -> InferenceWorker:
    """
    Load, check and warm up the policy once `reserve` has reserved memory, and begin its
    statistics; inference thread. Raises PolicyError.
    """
    path = parameters.policy_path
    if parameters.policy_kind in ('', 'builtin') and not path:
        path = default_path
    if parameters.policy_kind in KINDS_WITH_FILES and not path:
        raise PolicyError(NO_POLICY_TEXT)
    if parameters.policy_kind in ('', 'lerobot'):
        path = local_folder(path)
    loaded = load_policy(parameters, path, statistics, reserve)
    statistics.reset_for_policy(loaded.service_s)
    return loaded.worker


def load_policy(
    parameters: ServerParameters,
    path: str,
    statistics: ServerStatistics,
    reserve: Callable[[LoadOptions], MemoryReservation],
    check: PolicyCheck = lambda kind, description: None,
) -> LoadedPolicy:
    """
    Load, check and warm up the policy of `path` once `reserve` has reserved memory; `statistics`
    keep those of the policy that is served now. The inference thread, or one beside it. Raises
    PolicyError, and what `check` raises.
    """
    until_closed = contextlib.ExitStack()
    try:
        if path:
            hold_version(Path(path), until_closed)
        kind = parameters.policy_kind or detect_kind(path)
        options = load_options(parameters, path)
        reserved = reserve(options)
        until_closed.callback(reserved.release)
        policy = registry.load(kind, options)
        check_text_lengths(policy.describe())
        worker = InferenceWorker(
            policy,
            kind=kind,
            slot=parameters.slot,
            statistics=statistics,
            image_threads=parameters.image_threads,
            on_close=until_closed.close,
        )
    except BaseException:
        until_closed.close()
        raise
    try:
        check(kind, worker.description)
        service_s = warmed_up(worker, parameters.warmup_inferences)
    except BaseException:
        worker.close()
        raise
    reserved.on_loaded()
    return LoadedPolicy(worker, service_s)


def hold_version(folder: Path, until_closed: contextlib.ExitStack) -> None:
    """
    Compare the files of a version with its manifest, and keep it from being deleted until it is
    closed; nothing for any other folder. Raises PolicyError.
    """
    if not is_version(folder):
        return
    try:
        until_closed.callback(lock_checked(folder).release)
    except VersionError as error:
        raise PolicyError(str(error)) from None


def warmed_up(worker: InferenceWorker, times: int) -> float:
    """Warm up; return how long the last inference took [s]. Raises PolicyError."""
    try:
        return worker.warm_up(times)
    except InferenceFailed as error:
        raise PolicyError(f'The policy fails on an empty observation: {error}') from error


def check_text_lengths(description: PolicyDescription) -> None:
    """Raise PolicyError for a text that exceeds the limit of its message field."""
    texts = (
        (
            'fingerprint',
            description.fingerprint,
            FINGERPRINT_LIMIT,
            '; give it a shorter policy_name',
        ),
        ('policy_type', description.policy_type, TYPE_LIMIT, ''),
        ('device', description.device, DEVICE_LIMIT, ''),
    )
    for name, text, limit, remedy in texts:
        if len(text.encode()) > limit:
            raise PolicyError(f'the {name} {text[:40]!r}... is over {limit} bytes{remedy}')


def load_options(parameters: ServerParameters, path: str) -> LoadOptions:
    return LoadOptions(
        path,
        device=parameters.device,
        name=parameters.policy_name,
        state_names=parameters.state_names,
        action_names=parameters.action_names,
        trained_fps=parameters.trained_fps,
        allow_missing_statistics=parameters.allow_missing_statistics,
        cpu_threads=parameters.cpu_threads,
        memory_margin_bytes=parameters.memory_margin_mb << 20,
        state_limit=parameters.max_recurrent_states,
        dtype=parameters.dtype,
        trusted_packages=parameters.trusted_packages,
        embedding_cache_bytes=parameters.embedding_cache_mb << 20,
    )
