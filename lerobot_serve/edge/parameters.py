"""
The parameters of the node edge_controller.

The defaults of what a profile sets are those of the profile `wifi`. What a ladder may be for a
robot is checked in lerobot_serve.edge.fallback.rungs, since it depends on the robot file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lerobot_serve.edge.network_profiles import DEFAULT_PROFILE, PROFILES, with_profile
from lerobot_serve.edge.parameter_checks import check_stop
from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.telemetry import metrics_parameters as endpoint_settings
from lerobot_serve.trace.writing import trace_parameters as trace_settings
from lerobot_serve.wire.names import is_printable, is_topic
from lerobot_serve.wire.schema import TASK_LIMIT
from lerobot_serve.wire.session import TAG_KEY_LIMIT, TAG_VALUE_LIMIT, TAGS_LIMIT


@dataclass(frozen=True, slots=True)
class EdgeParameters:
    """See docs/parameters.md, which is made from this."""

    client_id: str = parameter(
        '', 'name of this robot, unique in the fleet; empty takes the namespace of the node'
    )
    profile: str = parameter(
        DEFAULT_PROFILE,
        'kind of network: sets those of its parameters that are not given',
        choices=tuple(PROFILES),
    )
    servers: tuple[str, ...] = parameter(
        ('/policy_server',),
        'full names of the policy servers or routers to ask, the preferred one first; the others '
        'are for when it fails',
    )
    robot_file: str = parameter(
        '', 'YAML file that describes the robot; empty takes config/robots/sim_arm.yaml'
    )
    task: str = parameter('', 'what the robot shall do, in words')
    run_on_start: bool = parameter(
        True,
        'ask and play from the start; false waits for the action RunEpisode or for reset',
    )
    policy: str = parameter(
        '', 'fingerprint or id of the policy to insist on; empty takes what is served'
    )

    # requests
    tags: tuple[str, ...] = parameter(
        (), "labels of this robot for the servers' logs and traces, each KEY=VALUE"
    )
    codec: str = parameter(
        'jpeg',
        'how images travel: jpeg over a network, raw on one machine',
        choices=('jpeg', 'raw'),
    )
    jpeg_quality: int = parameter(90, 'quality of JPEG images', low=1, high=100)
    downscale: bool = parameter(
        False, 'send images in the size that the policy wants, where that is smaller'
    )
    image_threads: int = parameter(
        2, 'threads that encode the cameras of a request side by side', low=1, high=32
    )
    buffer_time_s: float = parameter(
        0.5,
        'ask for the next chunk when so much or less is left to play',
        unit='s',
        low=0.1,
        high=60.0,
        live=True,
    )
    request_timeout_s: float = parameter(
        5.0, 'a request without an answer is given up after this', unit='s', low=0.05, high=60.0
    )
    max_consecutive_timeouts: int = parameter(
        2,
        'requests without an answer, one after the other, that end a session; a server whose '
        'process is lost is left without waiting for them',
        low=1,
        high=10,
    )

    # the queue
    merge: str = parameter(
        'append',
        'what a new chunk does to actions not yet played where it does not continue them: append '
        'to them, or replace them, which is a jump from one plan into another; with rtc a chunk '
        'continues them and replaces them',
        choices=('append', 'replace'),
    )
    delay_rule: str = parameter(
        'lived',
        'rows of a new chunk that are skipped where it replaces: lived what the clock says but no '
        'row in whose time the robot stood still, clamped what the clock says, raw the same as '
        'LeRobot 0.4 has it',
        choices=('lived', 'clamped', 'raw'),
    )
    rtc: bool = parameter(
        False,
        'send with each request what is left to play, so that the next chunk continues it; for '
        'policies with real-time chunking; a server without it is asked as without rtc',
    )
    execution_horizon: int = parameter(
        0,
        'rows of what is left that guide the next chunk with rtc; 0 leaves it to the policy',
        low=0,
        high=10_000,
    )
    interpolation: int = parameter(
        1,
        'commands for each action: a robot is commanded so many times faster than its policy acts',
        low=1,
        high=100,
    )
    max_action_age_s: float = parameter(
        3.0, 'no action is executed whose observation is older', unit='s', low=0.05, high=60.0
    )

    # the connection
    degraded_after_s: float = parameter(
        0.35,
        'the state is DEGRADED when a chunk is wanted and none has come for this long, or a '
        'request has failed, while actions are left; below buffer_time_s',
        unit='s',
        low=0.05,
        high=60.0,
        live=True,
    )
    reconnect_backoff_s: float = parameter(
        0.5,
        'longest wait before asking again after all servers failed; doubled each time',
        unit='s',
        low=0.05,
        high=10.0,
    )
    reconnect_max_backoff_s: float = parameter(
        10.0, 'where the doubling ends', unit='s', low=0.05, high=300.0
    )
    max_offline_s: float = parameter(
        60.0,
        'the state is DEAD after so long without a session, when there was one before or every '
        'server refuses this robot for good',
        unit='s',
        low=1.0,
        high=86400.0,
        live=True,
    )

    frozen_after_s: float = parameter(
        2.0,
        'a camera is frozen when its frame stays the same, byte by byte, for this long while the '
        'robot moves; 0 for never',
        unit='s',
        low=0.0,
        high=60.0,
    )
    frozen_camera: str = parameter(
        'warn',
        'what a frozen camera means: warn, or stop sending observations until it is mended',
        choices=('warn', 'stop'),
    )

    # safety
    ladder: tuple[str, ...] = parameter(
        (),
        'what is done when there is nothing to play, in turn, each with its seconds but the last: '
        'ramp, hold, repeat_last, zero, safe_pose, initial_pose, stop_service; empty takes ramp '
        '0.5 (or as long as the robot needs to stop) and hold, for a robot that has nothing but '
        'velocities zero',
    )
    resume_s: float = parameter(
        0.1,
        'actions are played again when so much is buffered, or something for so long',
        unit='s',
        low=0.0,
        high=10.0,
    )
    latch_after_trips: int = parameter(
        150,
        'actions in a row that the safety cage changes before it stops the robot until '
        '~/reset_cage; 0 for never',
        low=0,
        high=1_000_000,
    )
    start_tolerance: float = parameter(
        0.05,
        'how far outside its limits a joint may stand when it is commanded first, as a share of '
        'its range',
        low=0.0,
        high=10.0,
    )
    max_blind_s: float = parameter(
        0.5,
        'the robot holds when its state is missing or older than max_age_s for longer than this',
        unit='s',
        low=0.0,
        high=10.0,
    )
    clamp_alarm_s: float = parameter(
        1.0,
        'an error is logged when half of all joint-steps of so much playing or more were clamped; '
        'when as many were wanted outside the position limits, the safety cage stops the robot '
        'until reset; 0 for never',
        unit='s',
        low=0.0,
        high=60.0,
    )
    teardown: str = parameter(
        'hold',
        'what is done when the state becomes DEAD in an episode that is not paused, after coming '
        'to rest: hold, go to the safe_pose or to the initial_pose, in which the episode began, '
        'and then command nothing, or command nothing at once; before nothing is commanded the '
        'stop service is called, where there is one',
        choices=('hold', 'safe_pose', 'initial_pose', 'stop_service'),
    )
    stop_service: str = parameter(
        '',
        'full name of a service std_srvs/Trigger that stops the robot; empty: none is called',
    )
    while_paused: str = parameter(
        'hold',
        'what is done while an operator pauses: come to rest and hold, or command nothing, so '
        'that somebody else may',
        choices=('hold', 'nothing'),
    )
    status_period_s: float = parameter(
        0.2, 'time between two messages on ~/state', unit='s', low=0.02, high=10.0
    )

    # what is shown and written
    metrics_port: int = endpoint_settings.metrics_port()
    metrics_address: str = endpoint_settings.metrics_address()
    trace_folder: str = trace_settings.trace_folder(
        'each command, what became of each request, and what was dropped'
    )
    trace_limit_mb: int = trace_settings.trace_file_limit_mb()
    trace_files: int = trace_settings.trace_max_files()
    trace_images: str = trace_settings.trace_images()
    trace_instructions: str = trace_settings.trace_instructions()

    @staticmethod
    def complete(values: dict[str, Any]) -> dict[str, Any]:
        """Return the values above those of the profile that they name."""
        return with_profile(values)

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other, or do not fit a message."""
        if len(self.task.encode()) > TASK_LIMIT:
            raise ParameterError(
                f'task may have {TASK_LIMIT} bytes, got {len(self.task.encode())}'
            )
        read_tags(self.tags)
        _check_servers(self.servers)
        _check_times(self)
        _check_chunks(self)
        check_stop(self.stop_service, self.ladder, self.teardown)


def read_tags(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return key and value of each tag. Raises ParameterError."""
    tags = tuple(tuple(text.split('=', 1)) for text in texts)
    for text, tag in zip(texts, tags, strict=True):
        fits = len(tag) == 2 and tag[0] and is_printable(tag[0], TAG_KEY_LIMIT)
        if not (fits and is_printable(tag[1], TAG_VALUE_LIMIT)):
            raise ParameterError(
                f'tags must be KEY=VALUE in printable text, a key of at most {TAG_KEY_LIMIT} and '
                f'a value of at most {TAG_VALUE_LIMIT} bytes, got {text!r}'
            )
    if len(tags) > TAGS_LIMIT:
        raise ParameterError(f'tags may have {TAGS_LIMIT} entries, got {len(tags)}')
    return tags


def _check_servers(servers: tuple[str, ...]) -> None:
    if not servers:
        raise ParameterError('servers must name at least one, like /policy_server, got none')
    for server in servers:
        if not is_topic(server):
            raise ParameterError(
                f'servers must be full names of nodes like /policy_server, got {server!r}'
            )
        if servers.count(server) > 1:
            raise ParameterError(f'servers must differ, got {server} twice')


def _check_times(given: EdgeParameters) -> None:
    if given.buffer_time_s >= given.max_action_age_s:
        raise ParameterError(
            f'buffer_time_s must be below max_action_age_s ({given.max_action_age_s:g}), got '
            f'{given.buffer_time_s:g}: chunks would grow stale before they are played'
        )
    if given.degraded_after_s >= given.buffer_time_s:
        raise ParameterError(
            f'degraded_after_s must be below buffer_time_s ({given.buffer_time_s:g}), got '
            f'{given.degraded_after_s:g}: nothing would be left to play before the alarm'
        )
    if given.resume_s >= given.max_action_age_s:
        raise ParameterError(
            f'resume_s must be below max_action_age_s ({given.max_action_age_s:g}), got '
            f'{given.resume_s:g}: actions would grow stale before they are played again'
        )
    if given.reconnect_backoff_s > given.reconnect_max_backoff_s:
        raise ParameterError(
            'reconnect_backoff_s must be at most reconnect_max_backoff_s '
            f'({given.reconnect_max_backoff_s:g}), got {given.reconnect_backoff_s:g}'
        )
    if given.reconnect_max_backoff_s >= given.max_offline_s:
        raise ParameterError(
            f'reconnect_max_backoff_s must be below max_offline_s ({given.max_offline_s:g}), got '
            f'{given.reconnect_max_backoff_s:g}: the robot would be given up before it asks again'
        )


def _check_chunks(given: EdgeParameters) -> None:
    if given.merge == 'append' and not given.rtc and given.delay_rule != 'lived':
        raise ParameterError(
            f"delay_rule {given.delay_rule!r} does nothing with merge 'append' and without rtc, "
            "where no row is skipped; leave it out, set rtc, or take merge 'replace'"
        )
    if given.execution_horizon and not given.rtc:
        raise ParameterError(
            f'execution_horizon must be 0 without rtc, got {given.execution_horizon}'
        )
