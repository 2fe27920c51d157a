"""What is worked out from the parameters before and while a policy is served. No ROS."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies import guard, registry
from lerobot_serve.policies.base import Description, Loading, PolicyError
from lerobot_serve.policies.guard import Reserved
from lerobot_serve.policies.kinds import find_kind
from lerobot_serve.server import schedulers
from lerobot_serve.server.contract import Rules
from lerobot_serve.server.mailbox import Mailbox
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.serving import Admission, NOBODY, Serving
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.server.watch import Watch
from lerobot_serve.server.worker import failure, PolicyFailed, Worker
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.schema import FINGERPRINT_LIMIT, Status

# as in ServerStatus.msg
TYPE_LIMIT, DEVICE_LIMIT = 64, 32
# kinds whose policies are files; the others may need no path
OF_FILES = ('', 'builtin', 'exported', 'lerobot')
NO_POLICY = (
    'policy_path is empty, so there is no policy to serve; give -p policy_path:=DIR, the '
    "directory of a policy (the demo's is config/policies/reach of this package)"
)
UNCONFIGURED_TEXT = 'no policy is loaded; configure the node'


def worker(
    parameters: ServerParameters,
    default_path: str,
    statistics: Statistics,
    reserve: Callable[[Loading], Reserved] = guard.reserve,
) -> Worker:
    """
    Load, check and warm the policy, once `reserve` has found room; inference thread.

    Raises PolicyError.
    """
    path = parameters.policy_path
    if parameters.policy_kind in ('', 'builtin') and not path:
        path = default_path
    if parameters.policy_kind in OF_FILES and not path:
        raise PolicyError(NO_POLICY)
    kind = parameters.policy_kind or find_kind(path)
    wanted = loading(parameters, path)
    reserved = reserve(wanted)
    try:
        made = _loaded(kind, parameters, wanted, statistics, reserved)
    except BaseException:
        reserved.release()
        raise
    reserved.loaded()
    return made


def _loaded(
    kind: str,
    parameters: ServerParameters,
    wanted: Loading,
    statistics: Statistics,
    reserved: Reserved,
) -> Worker:
    policy = registry.load(kind, wanted)
    check_texts(policy.describe())
    made = Worker(
        policy,
        slot=parameters.slot,
        statistics=statistics,
        image_threads=parameters.image_threads,
        let_go=reserved.release,
    )
    try:
        service_s = made.warm_up(parameters.warmup_inferences)
    except PolicyFailed as error:
        made.close()
        raise PolicyError(f'the policy fails on an empty observation: {error}') from error
    statistics.new_policy(service_s)
    return made


def check_change(present: ServerParameters, wanted: ServerParameters) -> None:
    """Raise ParameterError for a path that nobody allowed when the node was started."""
    if wanted.policy_path == present.policy_path:
        return
    root = present.policy_root
    if not root:
        raise ParameterError(
            f'policy_path is fixed at start ({present.policy_path!r}); restart the node with the '
            'new value, or with policy_root, the folder below which it may be changed'
        )
    # with all links followed: one that leads out of the folder is refused
    if not Path(wanted.policy_path).resolve().is_relative_to(Path(root).resolve()):
        raise ParameterError(
            f'policy_path must lie below policy_root ({root!r}), got {wanted.policy_path!r}; copy '
            'the policy there'
        )


def check_texts(served: Description) -> None:
    """A text that no message can hold would be found by the first robot. Raises PolicyError."""
    texts = (
        ('fingerprint', served.fingerprint, FINGERPRINT_LIMIT, '; give it a shorter policy_name'),
        ('policy_type', served.policy_type, TYPE_LIMIT, ''),
        ('device', served.device, DEVICE_LIMIT, ''),
    )
    for name, text, limit, remedy in texts:
        if len(text.encode()) > limit:
            raise PolicyError(f'the {name} {text[:40]!r}... is over {limit} bytes{remedy}')


def loading(parameters: ServerParameters, path: str) -> Loading:
    return Loading(
        path,
        parameters.device,
        parameters.policy_name,
        parameters.state_names,
        parameters.action_names,
        parameters.trained_fps,
        parameters.allow_missing_statistics,
        parameters.cpu_threads,
        parameters.memory_margin_mb << 20,
        parameters.recurrent_states,
        parameters.dtype,
        parameters.trusted_packages,
    )


def rules(parameters: ServerParameters) -> Rules:
    return Rules(
        parameters.max_sessions,
        parameters.default_task,
        parameters.pin_task,
        parameters.strict_fps,
        int(parameters.session_grace_s * 1e9),
        int(parameters.session_idle_s * 1e9),
        parameters.sessions_per_process,
        parameters.one_shots_waiting,
    )


def admission(parameters: ServerParameters) -> Admission:
    return Admission(parameters.admission == 'auto', parameters.network_ms / 1e3)


def serving(
    made: Worker,
    mailbox: Mailbox,
    statistics: Statistics,
    parameters: ServerParameters,
    watch: Watch = NOBODY,
) -> Serving:
    """Return the policy ready to be served, not yet taking sessions."""
    created = Serving(made, mailbox, statistics, rules(parameters), admission(parameters), watch)
    change(created, parameters)
    return created


def change(served: Serving, parameters: ServerParameters) -> None:
    """Bring in what may change live; sessions that are open stay open."""
    scheduler = schedulers.make(
        parameters.scheduler,
        size=parameters.batch_size,
        window_ns=int(parameters.batch_wait_ms * 1e6),
        batch_limit=served.served.batch_limit,
    )
    served.change(rules(parameters), admission(parameters), scheduler)


def in_words(served: Description) -> str:
    """Return what is served, for the log."""
    kind = served.state_class.name.lower()
    return f'{served.fingerprint} ({served.policy_type}, {kind}) on {served.device}'


def no_session(client_id: str, session_epoch: int) -> str:
    return f'{client_id!r} has no session of epoch {session_epoch}'


def refused_chunk(raw: bytes, text: str) -> Chunk:
    """Return the answer of a server that serves no policy now."""
    return failure(raw, Status.DRAINING, f'not ready: {text}')
