"""The parameters of the node edge_controller."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.wire.schema import TASK_LIMIT


@dataclass(frozen=True, slots=True)
class EdgeParameters:
    """See docs/parameters.md, which is made from this."""

    client_id: str = parameter(
        '', 'name of this robot, unique in the fleet; empty takes the namespace of the node'
    )
    server: str = parameter('/policy_server', 'full name of the policy server or router to ask')
    robot_file: str = parameter(
        '', 'YAML file that describes the robot; empty takes config/robots/sim_arm.yaml'
    )
    task: str = parameter('', 'what the robot shall do, in words')
    policy: str = parameter(
        '', 'fingerprint or id of the policy to insist on; empty takes what is served'
    )
    codec: str = parameter(
        'jpeg',
        'how images travel: jpeg over a network, raw on one machine',
        choices=('jpeg', 'raw'),
    )
    jpeg_quality: int = parameter(90, 'quality of JPEG images', low=1, high=100, live=True)
    image_threads: int = parameter(
        2, 'threads that encode the cameras of a request side by side', low=1, high=32
    )
    merge: str = parameter(
        'replace',
        'what a new chunk does to actions not yet played: replace them, or append to them',
        choices=('replace', 'append'),
    )
    buffer_time_s: float = parameter(
        0.5,
        'ask for the next chunk when so much or less is left to play',
        unit='s',
        low=0.0,
        high=60.0,
        live=True,
    )
    max_action_age_s: float = parameter(
        3.0, 'no action is executed whose observation is older', unit='s', low=0.05, high=60.0
    )
    request_timeout_s: float = parameter(
        5.0, 'a request without an answer is given up after this', unit='s', low=0.05, high=60.0
    )
    reconnect_backoff_s: float = parameter(
        0.5,
        'wait before asking for a session again; doubled each time up to the bound',
        unit='s',
        low=0.05,
        high=10.0,
    )
    status_period_s: float = parameter(
        0.2, 'time between two messages on ~/state', unit='s', low=0.02, high=10.0
    )

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other, or do not fit a message."""
        if len(self.task.encode()) > TASK_LIMIT:
            raise ParameterError(
                f'task may have {TASK_LIMIT} bytes, got {len(self.task.encode())}'
            )
        if self.buffer_time_s >= self.max_action_age_s:
            raise ParameterError(
                f'buffer_time_s must be below max_action_age_s ({self.max_action_age_s:g}), got '
                f'{self.buffer_time_s:g}: chunks would grow stale before they are played'
            )
