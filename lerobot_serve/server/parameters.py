# SPDX-License-Identifier: Apache-2.0
"""Parameters of the node policy_server."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve import quotas as quota_rules
from lerobot_serve.local import local_parameters as local
from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.quotas import parse_quotas, QuotaRule
from lerobot_serve.telemetry import metrics_parameters as telemetry
from lerobot_serve.trace.format.redaction import LEVELS
from lerobot_serve.trace.writing import open_trace as trace
from lerobot_serve.zenoh import zenoh_parameters as zenoh


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """Parameters of policy_server; docs/parameters.md is generated from them."""

    autostart: bool = parameter(
        True, 'configure and activate at start; false waits for a lifecycle manager'
    )
    policy_kind: str = parameter(
        '',
        'policy kind: builtin, exported, groot, http, lerobot, lerobot_async, null, openpi, '
        'recurrent, or one of another package; empty detects it from the files in policy_path',
        on_configure=True,
    )
    policy_path: str = parameter(
        '',
        'directory of the policy; or a LeRobot policy of the Hugging Face hub, '
        'USER/REPOSITORY[@REVISION]; or the contract file of a server of others, for the kinds '
        'groot, http, lerobot_async and openpi; at runtime it may change only below policy_root',
        on_configure=True,
    )
    policy_root: str = parameter(
        '',
        'directory below which policy_path may change at runtime; empty allows no change',
    )
    policy_name: str = parameter(
        '',
        'name in the fingerprint (NAME@HASH); empty uses the name in the files',
        on_configure=True,
    )
    device: str = parameter(
        'cpu', 'device of the policy, for example cpu or cuda:0', on_configure=True
    )
    dtype: str = parameter(
        '',
        'precision of a LeRobot policy; empty uses its own',
        choices=('', 'float32', 'bfloat16', 'float16'),
        on_configure=True,
    )
    trusted_packages: tuple[str, ...] = parameter(
        (),
        'installed Python packages from which LeRobot may load policy types and processor steps; '
        'others are refused',
        on_configure=True,
    )
    cpu_threads: int = parameter(
        0,
        'threads of one inference on the CPU; 0 leaves it to torch, and is 1 for a builtin policy',
        low=0,
        high=1024,
        on_configure=True,
    )
    memory_margin_mb: int = parameter(
        512,
        'free memory required beside the weights; with less the policy is not loaded',
        unit='MB',
        low=0,
        high=1_000_000,
        on_configure=True,
    )
    state_names: tuple[str, ...] = parameter(
        (),
        'names of the values in observation.state, in order, if the policy files lack them',
        on_configure=True,
    )
    action_names: tuple[str, ...] = parameter(
        (),
        'names of the actions, in order, if the policy files lack them',
        on_configure=True,
    )
    trained_fps: float = parameter(
        0.0,
        'frame rate the policy was trained at, if the policy files lack it; 0 is unknown',
        low=0.0,
        high=1000.0,
        on_configure=True,
    )
    allow_missing_statistics: bool = parameter(
        False,
        'serve a policy without normalisation statistics; its values are not normalized',
        on_configure=True,
    )
    max_recurrent_states: int = parameter(
        256,
        'maximum number of kept hidden states; the least recently used one is discarded',
        low=1,
        high=65536,
        on_configure=True,
    )
    embedding_cache_mb: int = parameter(
        0,
        'limit of the cache of image embeddings of SmolVLA, Pi0 and Pi0.5, on the device; a '
        'repeated image is not embedded again, and no answer changes; 0 disables it',
        unit='MB',
        low=0,
        high=100_000,
        on_configure=True,
    )
    slot: str = parameter(
        'prod', 'slot name in chunks, status and metrics', choices=('prod', 'a', 'b')
    )
    scheduler: str = parameter(
        'round_robin',
        'order of requests: round_robin; lowest_queue_first, the client that runs out of actions '
        'first; dynamic_batching, several in one forward pass',
        choices=('round_robin', 'lowest_queue_first', 'dynamic_batching'),
        live=True,
    )
    max_batch_size: int = parameter(
        64,
        'maximum number of requests in one forward pass of dynamic_batching',
        low=1,
        high=1024,
        live=True,
    )
    max_batch_delay_ms: float = parameter(
        5.0,
        'longest wait of dynamic_batching for more requests',
        unit='ms',
        low=0.0,
        high=1000.0,
        live=True,
    )
    admission: str = parameter(
        'fixed',
        'session limit: fixed uses max_sessions; auto computes it from measurements, at most '
        'max_sessions',
        choices=('fixed', 'auto'),
        live=True,
    )
    max_sessions: int = parameter(
        16,
        'maximum number of open sessions; further ones are refused',
        low=1,
        high=4096,
        live=True,
    )
    max_sessions_per_process: int = parameter(
        4,
        'maximum number of sessions of one client process (one `instance` of OpenSession)',
        low=1,
        high=4096,
        live=True,
    )
    max_waiting_goals: int = parameter(
        16,
        'maximum number of queued predict_chunk calls; they share the turn of one client, further '
        'ones are refused',
        low=1,
        high=4096,
        live=True,
    )
    network_round_trip_ms: float = parameter(
        10.0,
        'network round trip assumed by admission auto',
        unit='ms',
        low=0.0,
        high=10000.0,
        live=True,
    )
    quotas: tuple[str, ...] = quota_rules.quotas()
    quota_burst_s: float = quota_rules.quota_burst_s()
    default_task: str = parameter('', 'task of sessions that request none', on_configure=True)
    pin_task: bool = parameter(
        False,
        'refuse sessions and requests with a task other than default_task',
        on_configure=True,
    )
    require_trained_fps: bool = parameter(
        False,
        'refuse clients whose control rate differs from the trained rate, instead of a warning',
        on_configure=True,
    )
    warmup_inferences: int = parameter(
        2,
        'warm-up inferences before the first session; not counted in statistics',
        low=1,
        high=100,
        on_configure=True,
    )
    image_threads: int = parameter(
        2,
        'threads that decode the camera images of a request',
        low=1,
        high=32,
        on_configure=True,
    )
    session_grace_s: float = parameter(
        5.0,
        'how long a silent client keeps its client_id, and its session once its reply topic has '
        'no subscriber',
        unit='s',
        low=0.0,
        high=3600.0,
        live=True,
    )
    session_idle_s: float = parameter(
        60.0,
        'idle time after which a session is closed',
        unit='s',
        low=1.0,
        high=86400.0,
        live=True,
    )
    drain_timeout_s: float = parameter(
        4.0,
        'longest wait of deactivate for outstanding replies; ros2 launch kills after five seconds',
        unit='s',
        low=0.0,
        high=60.0,
        live=True,
    )
    status_period_s: float = parameter(1.0, 'period of ~/status', unit='s', low=0.05, high=60.0)
    local_path: bool = local.local_path(
        True, 'offer clients of this host the local path for requests and replies'
    )
    local_group: str = local.local_group()
    local_folder: str = local.local_folder()
    zenoh_listen: tuple[str, ...] = zenoh.zenoh_listen()
    zenoh_connect: tuple[str, ...] = zenoh.zenoh_connect()
    zenoh_site: str = zenoh.zenoh_site()
    zenoh_keys: str = zenoh.zenoh_keys()
    metrics_port: int = telemetry.metrics_port()
    metrics_address: str = telemetry.metrics_address()
    trace_folder: str = trace.trace_folder('every request with its reply or drop')
    trace_file_limit_mb: int = trace.trace_file_limit_mb()
    trace_max_files: int = trace.trace_max_files()
    # the edge's trace has the hashes; here they would cost as much as the rest of the trace
    trace_images: str = parameter(
        'none', 'images in the trace: full, hash or none', choices=LEVELS
    )
    trace_instructions: str = trace.trace_instructions()
    capture_folder: str = parameter(
        '',
        'directory for captures: the raw requests of a client around a policy error or a late '
        'reply; empty disables them',
    )
    max_capture_mb: int = parameter(
        100,
        'limit of captures in memory, and on disk; the oldest are removed',
        unit='MB',
        low=1,
        high=100_000,
    )

    @property
    def session_grace_ns(self) -> int:
        return int(self.session_grace_s * 1e9)

    @property
    def session_idle_ns(self) -> int:
        return int(self.session_idle_s * 1e9)

    @property
    def quota_rules(self) -> tuple[QuotaRule, ...]:
        """What robots and groups may use. Raises ParameterError."""
        return parse_quotas(self.quotas)

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other."""
        parse_quotas(self.quotas)
        if self.pin_task and not self.default_task:
            raise ParameterError('pin_task needs a default_task to pin, got an empty one')
        if self.session_grace_s > self.session_idle_s:
            raise ParameterError(
                f'session_grace_s must be at most session_idle_s ({self.session_idle_s:g}), '
                f'got {self.session_grace_s:g}'
            )
