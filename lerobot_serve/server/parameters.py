"""The parameters of the node policy_server."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.parameters import parameter, ParameterError


@dataclass(frozen=True, slots=True)
class ServerParameters:
    """See docs/parameters.md, which is made from this."""

    policy_kind: str = parameter(
        'builtin', 'kind of policy: an entry point of lerobot_serve.policies'
    )
    policy_path: str = parameter(
        '',
        'where the policy lies; empty takes the small reaching policy of config/policies',
    )
    device: str = parameter('cpu', 'where the policy runs, for example cpu or cuda:0')
    slot: str = parameter(
        'prod', 'name under which chunks are reported', choices=('prod', 'a', 'b')
    )
    max_sessions: int = parameter(
        16, 'robots served at once; the next one is refused', low=1, high=4096, live=True
    )
    default_task: str = parameter('', 'task of a session that names none')
    pin_task: bool = parameter(
        False, 'refuse sessions and requests with another task than default_task'
    )
    strict_fps: bool = parameter(
        False, 'refuse robots whose control rate differs from the trained one, instead of warning'
    )
    warmup_inferences: int = parameter(
        2, 'inferences before the first session; they count in no statistic', low=0, high=100
    )
    image_threads: int = parameter(
        2, 'threads that decode the cameras of a request side by side', low=1, high=32
    )
    session_grace_s: float = parameter(
        5.0,
        'how long a silent robot keeps its name against another one of that name',
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
    status_period_s: float = parameter(
        1.0, 'time between two messages on ~/status', unit='s', low=0.05, high=60.0
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
