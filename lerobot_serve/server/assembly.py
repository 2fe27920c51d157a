# SPDX-License-Identifier: Apache-2.0
"""Build the server core, its worker and its settings from the parameters. No ROS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.base import PolicyDescription
from lerobot_serve.policies.lerobot.hub import hub_policy
from lerobot_serve.server.core import AdmissionSettings, NO_OBSERVER, ServerCore
from lerobot_serve.server.inference import schedulers
from lerobot_serve.server.inference.request_queue import RequestQueue
from lerobot_serve.server.inference.worker import InferenceWorker
from lerobot_serve.server.observability.request_observer import RequestObserver
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_validation import SessionRules

UNCONFIGURED_TEXT = 'no policy is loaded; configure the node'


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


def session_rules(parameters: ServerParameters) -> SessionRules:
    return SessionRules(
        max_sessions=parameters.max_sessions,
        default_task=parameters.default_task,
        pin_task=parameters.pin_task,
        require_trained_fps=parameters.require_trained_fps,
        grace_ns=int(parameters.session_grace_s * 1e9),
        idle_ns=int(parameters.session_idle_s * 1e9),
        process_sessions=parameters.max_sessions_per_process,
        one_shots=parameters.max_waiting_goals,
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
    send_no_session: Callable[[Chunk], None] = lambda _: None,
) -> ServerCore:
    """Return the core of a loaded policy; it does not accept sessions yet."""
    core = ServerCore(
        worker,
        request_queue,
        statistics,
        session_rules(parameters),
        admission_settings(parameters),
        observer,
        send_no_session,
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
    core.quotas.apply(parameters.quota_rules, parameters.quota_burst_s)


def policy_summary(description: PolicyDescription) -> str:
    """Return the served policy as one line of the log."""
    kind = description.state_class.name.lower()
    return f'{description.fingerprint} ({description.policy_type}, {kind}) on {description.device}'
