# SPDX-License-Identifier: Apache-2.0
"""Build the server core, its worker and its settings from the parameters. No ROS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies import registry
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError
from lerobot_serve.policies.kind_detection import detect_kind
from lerobot_serve.policies.resources import memory_reservation
from lerobot_serve.policies.resources.memory_reservation import MemoryReservation
from lerobot_serve.server.core import AdmissionSettings, NO_OBSERVER, ServerCore
from lerobot_serve.server.inference import schedulers
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.inference.worker import error_chunk, InferenceFailed, InferenceWorker
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_validation import SessionRules
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.schema import FINGERPRINT_LIMIT, Status

# as in ServerStatus.msg
TYPE_LIMIT, DEVICE_LIMIT = 64, 32
# kinds whose policies are files; the others may need no path
KINDS_WITH_FILES = ('', 'builtin', 'exported', 'lerobot')
NO_POLICY_TEXT = (
    'policy_path is empty: no policy to serve; set -p policy_path:=DIR, the directory of a policy '
    "(the demo's is config/policies/reach of this package)"
)
UNCONFIGURED_TEXT = 'no policy is loaded; configure the node'


def load_worker(
    parameters: ServerParameters,
    default_path: str,
    statistics: ServerStatistics,
    reserve: Callable[[LoadOptions], MemoryReservation] = memory_reservation.reserve,
) -> InferenceWorker:
    """
    Load, check and warm up the policy once `reserve` has reserved memory; inference thread.

    Raises PolicyError.
    """
    path = parameters.policy_path
    if parameters.policy_kind in ('', 'builtin') and not path:
        path = default_path
    if parameters.policy_kind in KINDS_WITH_FILES and not path:
        raise PolicyError(NO_POLICY_TEXT)
    kind = parameters.policy_kind or detect_kind(path)
    options = load_options(parameters, path)
    reserved = reserve(options)
    try:
        worker = _load_worker(kind, parameters, options, statistics, reserved)
    except BaseException:
        reserved.release()
        raise
    reserved.on_loaded()
    return worker


def _load_worker(
    kind: str,
    parameters: ServerParameters,
    options: LoadOptions,
    statistics: ServerStatistics,
    reserved: MemoryReservation,
) -> InferenceWorker:
    policy = registry.load(kind, options)
    check_text_lengths(policy.describe())
    worker = InferenceWorker(
        policy,
        slot=parameters.slot,
        statistics=statistics,
        image_threads=parameters.image_threads,
        on_close=reserved.release,
    )
    try:
        service_s = worker.warm_up(parameters.warmup_inferences)
    except InferenceFailed as error:
        worker.close()
        raise PolicyError(f'The policy fails on an empty observation: {error}') from error
    statistics.reset_for_policy(service_s)
    return worker


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
    # resolve() follows links, so that a link out of the folder is refused
    if not Path(wanted.policy_path).resolve().is_relative_to(Path(root).resolve()):
        raise ParameterError(
            f'policy_path must lie below policy_root ({root!r}), got {wanted.policy_path!r}; copy '
            'the policy there'
        )


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
        parameters.device,
        parameters.policy_name,
        parameters.state_names,
        parameters.action_names,
        parameters.trained_fps,
        parameters.allow_missing_statistics,
        parameters.cpu_threads,
        parameters.memory_margin_mb << 20,
        parameters.max_recurrent_states,
        parameters.dtype,
        parameters.trusted_packages,
    )


def session_rules(parameters: ServerParameters) -> SessionRules:
    return SessionRules(
        parameters.max_sessions,
        parameters.default_task,
        parameters.pin_task,
        parameters.require_trained_fps,
        int(parameters.session_grace_s * 1e9),
        int(parameters.session_idle_s * 1e9),
        parameters.max_sessions_per_process,
        parameters.max_waiting_goals,
    )


def admission_settings(parameters: ServerParameters) -> AdmissionSettings:
    return AdmissionSettings(
        parameters.admission == 'auto', parameters.network_round_trip_ms / 1e3
    )


def make_core(
    worker: InferenceWorker,
    request_queue: RequestQueue,
    statistics: ServerStatistics,
    parameters: ServerParameters,
    observer: RequestObserver = NO_OBSERVER,
) -> ServerCore:
    """Return the core of a loaded policy; it does not accept sessions yet."""
    core = ServerCore(
        worker,
        request_queue,
        statistics,
        session_rules(parameters),
        admission_settings(parameters),
        observer,
    )
    apply_live_parameters(core, parameters)
    return core


def apply_live_parameters(core: ServerCore, parameters: ServerParameters) -> None:
    """Apply the parameters that may change live; open sessions stay open."""
    scheduler = schedulers.make_scheduler(
        parameters.scheduler,
        size=parameters.max_batch_size,
        window_ns=int(parameters.max_batch_delay_ms * 1e6),
        batch_limit=core.description.batch_limit,
    )
    core.apply_settings(session_rules(parameters), admission_settings(parameters), scheduler)


def policy_summary(description: PolicyDescription) -> str:
    """Return the served policy as one line of the log."""
    kind = description.state_class.name.lower()
    return f'{description.fingerprint} ({description.policy_type}, {kind}) on {description.device}'


def no_session_text(client_id: str, session_epoch: int) -> str:
    return f'{client_id!r} has no session of epoch {session_epoch}'


def not_ready_chunk(raw: bytes, text: str) -> Chunk:
    """Return the reply of a server without an active policy."""
    return error_chunk(raw, Status.DRAINING, f'not ready: {text}')
