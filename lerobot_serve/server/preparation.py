"""What is worked out from the parameters before and while a policy is served. No ROS."""

from __future__ import annotations

from lerobot_serve.policies import registry
from lerobot_serve.policies.base import Description, Loading, PolicyError
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
UNCONFIGURED_TEXT = 'no policy is loaded; configure the node'


def worker(parameters: ServerParameters, default_path: str, statistics: Statistics) -> Worker:
    """
    Load, check and warm the policy; inference thread. Raises PolicyError.
    """
    path = parameters.policy_path
    if parameters.policy_kind in ('', 'builtin') and not path:
        path = default_path
    kind = parameters.policy_kind or find_kind(path)
    policy = registry.load(kind, loading(parameters, path))
    check_texts(policy.describe())
    made = Worker(
        policy,
        slot=parameters.slot,
        statistics=statistics,
        image_threads=parameters.image_threads,
    )
    try:
        service_s = made.warm_up(parameters.warmup_inferences)
    except PolicyFailed as error:
        made.close()
        raise PolicyError(f'the policy fails on an empty observation: {error}') from error
    statistics.new_policy(service_s)
    return made


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
