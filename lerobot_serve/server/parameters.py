"""The parameters of the node policy_server."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.telemetry import metrics_parameters as telemetry
from lerobot_serve.trace.format.redaction import LEVELS
from lerobot_serve.trace.writing import trace_parameters as trace


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """See docs/parameters.md, which is made from this."""

    autostart: bool = parameter(
        True, 'configure and activate at start; false waits for a lifecycle manager'
    )
    policy_kind: str = parameter(
        '',
        'kind of policy: builtin, exported, lerobot, null, recurrent, or one of another package; '
        'empty finds it out from the files of policy_path',
        on_configure=True,
    )
    policy_path: str = parameter(
        '',
        'where the policy lies, for kinds that have files; later changed only below policy_root',
        on_configure=True,
    )
    policy_root: str = parameter(
        '',
        'folder below which policy_path may change while the node runs; empty for no change',
    )
    policy_name: str = parameter(
        '',
        'what stands before the @ of the fingerprint; empty takes the name in the files',
        on_configure=True,
    )
    device: str = parameter(
        'cpu', 'where the policy runs, for example cpu or cuda:0', on_configure=True
    )
    dtype: str = parameter(
        '',
        'precision that a policy of LeRobot computes in; empty for its own',
        choices=('', 'float32', 'bfloat16', 'float16'),
        on_configure=True,
    )
    trusted_packages: tuple[str, ...] = parameter(
        (),
        'installed Python packages whose policy types and processor steps LeRobot may load; '
        'those of others are refused',
        on_configure=True,
    )
    cpu_threads: int = parameter(
        0,
        'threads of one inference on the CPU; 0 leaves it to torch',
        low=0,
        high=1024,
        on_configure=True,
    )
    memory_margin_mb: int = parameter(
        512,
        'memory a policy needs beside its weights; it is not loaded when that is not free',
        unit='MB',
        low=0,
        high=1_000_000,
        on_configure=True,
    )
    state_names: tuple[str, ...] = parameter(
        (),
        'names of the values in observation.state, in order, for a policy that does not hold them',
        on_configure=True,
    )
    action_names: tuple[str, ...] = parameter(
        (),
        'names of the actions, in order, for a policy that does not hold them',
        on_configure=True,
    )
    trained_fps: float = parameter(
        0.0,
        'frames a second the policy was trained at, for one that does not hold it; 0 for unknown',
        low=0.0,
        high=1000.0,
        on_configure=True,
    )
    allow_missing_statistics: bool = parameter(
        False,
        'serve a policy whose normalisation statistics are missing, without normalising',
        on_configure=True,
    )
    recurrent_states: int = parameter(
        256,
        'sessions whose hidden state is kept; the one unused for longest is forgotten',
        low=1,
        high=65536,
        on_configure=True,
    )
    slot: str = parameter(
        'prod', 'name under which chunks are reported', choices=('prod', 'a', 'b')
    )
    scheduler: str = parameter(
        'round_robin',
        'whose turn it is: round_robin one after the other, earliest_dry who runs out of actions '
        'first, micro_batch several at once',
        choices=('round_robin', 'earliest_dry', 'micro_batch'),
        live=True,
    )
    batch_size: int = parameter(
        64, 'most requests in one forward pass of micro_batch', low=1, high=1024, live=True
    )
    batch_wait_ms: float = parameter(
        5.0,
        'how long micro_batch waits for more requests',
        unit='ms',
        low=0.0,
        high=1000.0,
        live=True,
    )
    admission: str = parameter(
        'fixed',
        'sessions admitted: fixed takes max_sessions, auto what measurements allow, at most '
        'max_sessions',
        choices=('fixed', 'auto'),
        live=True,
    )
    max_sessions: int = parameter(
        16, 'robots served at once; the next one is refused', low=1, high=4096, live=True
    )
    sessions_per_process: int = parameter(
        4,
        'sessions of one client process (one `instance` of OpenSession), so that none takes all',
        low=1,
        high=4096,
        live=True,
    )
    one_shots_waiting: int = parameter(
        16,
        'calls of ~/predict_chunk that wait; they share one place in the line of the robots, and '
        'the next one is refused',
        low=1,
        high=4096,
        live=True,
    )
    network_ms: float = parameter(
        10.0,
        'round trip through the network that admission auto reckons with',
        unit='ms',
        low=0.0,
        high=10000.0,
        live=True,
    )
    default_task: str = parameter('', 'task of a session that names none', on_configure=True)
    pin_task: bool = parameter(
        False,
        'refuse sessions and requests with another task than default_task',
        on_configure=True,
    )
    strict_fps: bool = parameter(
        False,
        'refuse robots whose control rate differs from the trained one, instead of warning',
        on_configure=True,
    )
    warmup_inferences: int = parameter(
        2,
        'inferences before the first session; they count in no statistic',
        low=1,
        high=100,
        on_configure=True,
    )
    image_threads: int = parameter(
        2,
        'threads that decode the cameras of a request side by side',
        low=1,
        high=32,
        on_configure=True,
    )
    session_grace_s: float = parameter(
        5.0,
        'how long a silent robot keeps its name against another one of that name, and its session '
        'when nobody listens for its chunks any more',
        unit='s',
        low=0.0,
        high=3600.0,
        live=True,
    )
    session_idle_s: float = parameter(
        60.0,
        'a session without requests is closed after this',
        unit='s',
        low=1.0,
        high=86400.0,
        live=True,
    )
    drain_s: float = parameter(
        4.0,
        'how long deactivating waits for the answers that are due; ros2 launch gives a process '
        'five seconds to stop',
        unit='s',
        low=0.0,
        high=60.0,
        live=True,
    )
    status_period_s: float = parameter(
        1.0, 'time between two messages on ~/status', unit='s', low=0.05, high=60.0
    )
    metrics_port: int = telemetry.metrics_port()
    metrics_address: str = telemetry.metrics_address()
    trace_folder: str = trace.trace_folder('what became of every request')
    trace_limit_mb: int = trace.trace_file_limit_mb()
    trace_files: int = trace.trace_max_files()
    # the edge's trace has the hashes of what it sent; here they would cost as much as all the rest
    trace_images: str = parameter(
        'none', 'what the trace keeps of images: full, a hash, or none', choices=LEVELS
    )
    trace_instructions: str = trace.trace_instructions()
    capture_folder: str = parameter(
        '',
        'folder for captures: requests, as they came, of a robot to which the policy failed or '
        'that was answered too late; empty for none',
    )
    capture_limit_mb: int = parameter(
        100,
        'what captures may take in memory, and again on disk; the oldest are removed',
        unit='MB',
        low=1,
        high=100_000,
    )

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other."""
        if self.pin_task and not self.default_task:
            raise ParameterError('pin_task needs a default_task to pin, got an empty one')
        if self.session_grace_s > self.session_idle_s:
            raise ParameterError(
                f'session_grace_s must be at most session_idle_s ({self.session_idle_s:g}), '
                f'got {self.session_grace_s:g}'
            )
