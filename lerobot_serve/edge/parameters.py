# SPDX-License-Identifier: Apache-2.0
"""
The parameters of the node edge_controller.

Defaults that a profile sets are those of the profile `wifi`. Ladders depend on the robot file:
lerobot_serve.edge.control.rungs checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lerobot_serve.contract.limits import TASK_LIMIT
from lerobot_serve.contract.names import (
    is_over_zenoh,
    is_printable,
    is_topic,
    node_name,
    OVER_ROS,
)
from lerobot_serve.contract.services.session import TAG_KEY_LIMIT, TAG_VALUE_LIMIT, TAGS_LIMIT
from lerobot_serve.contract.types import KeyValue
from lerobot_serve.edge.network_profiles import DEFAULT_PROFILE, PROFILES, with_profile
from lerobot_serve.local import local_parameters as local
from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.telemetry import metrics_parameters as endpoint_settings
from lerobot_serve.trace.writing import open_trace as trace_settings
from lerobot_serve.zenoh import zenoh_parameters as zenoh


@dataclass(frozen=True, slots=True)
class EdgeParameters:
    """Parameters of edge_controller; docs/parameters.md is generated from them."""

    client_id: str = parameter(
        '', 'name of this robot, unique in the fleet; empty: the namespace of the node'
    )
    network_profile: str = parameter(
        DEFAULT_PROFILE,
        'network profile: defaults for its parameters that are not set explicitly',
        choices=tuple(PROFILES),
    )
    servers: tuple[str, ...] = parameter(
        ('/policy_server',),
        'full names of the policy servers or routers, in order of preference; the rest are '
        'failover targets. zenoh:/NAME or ros:/NAME gives one a link of its own',
    )
    link: str = zenoh.link()
    local_path: bool = local.local_path(
        False,
        'use the local path to servers of this host: faster, but what passes there is on no topic '
        'and in no rosbag',
    )
    local_group: str = local.local_group()
    zenoh_connect: tuple[str, ...] = zenoh.zenoh_connect()
    zenoh_listen: tuple[str, ...] = zenoh.zenoh_listen()
    zenoh_site: str = zenoh.zenoh_site()
    zenoh_keys: str = zenoh.zenoh_keys()
    robot_file: str = parameter(
        '', 'YAML file that describes the robot; empty: config/robots/sim_arm.yaml'
    )
    task: str = parameter('', 'task instruction')
    run_on_start: bool = parameter(
        True,
        'start an episode at start-up; false: wait for the action RunEpisode or for ~/reset',
    )
    required_policy: str = parameter(
        '', 'required policy, by fingerprint or id; empty: any policy'
    )

    # requests
    tags: tuple[str, ...] = parameter(
        (), "labels of this robot for the servers' logs and traces, each KEY=VALUE"
    )
    codec: str = parameter(
        'jpeg',
        'image encoding: jpeg over a network, raw on one machine',
        choices=('jpeg', 'raw'),
    )
    jpeg_quality: int = parameter(90, 'quality of JPEG images', low=1, high=100)
    downscale: bool = parameter(
        False, 'resize images to the input size of the policy where that is smaller'
    )
    image_threads: int = parameter(
        2, 'threads that encode the images of a request in parallel', low=1, high=32
    )
    request_threshold_s: float = parameter(
        0.5,
        'request the next chunk when the queue holds this much or less',
        unit='s',
        low=0.1,
        high=60.0,
        live=True,
    )
    request_timeout_s: float = parameter(
        5.0, 'deadline of a request', unit='s', low=0.05, high=60.0
    )
    max_consecutive_timeouts: int = parameter(
        2,
        'consecutive timeouts after which the session is closed; a lost server process is '
        'detected without waiting for them',
        low=1,
        high=10,
    )

    # the queue
    merge_mode: str = parameter(
        'append',
        'how a chunk that does not continue the queue is merged: append to the queue, or replace '
        'it, which jumps from one plan to another; with rtc a chunk continues the queue and '
        'replaces it',
        choices=('append', 'replace'),
    )
    skip_rule: str = parameter(
        'moving_time',
        'rows skipped in a chunk that replaces the queue: moving_time skips the elapsed rows, at '
        'most those the robot executed, elapsed_time skips the elapsed rows, lerobot slices as '
        'LeRobot 0.4 does',
        choices=('moving_time', 'elapsed_time', 'lerobot'),
    )
    rtc: bool = parameter(
        False,
        'send the prefix with each request, so that the next chunk continues it; for policies '
        'with real-time chunking; ignored for a server without it',
    )
    execution_horizon: int = parameter(
        0,
        'rows of the prefix that guide the next chunk with rtc; 0: the default of the policy',
        low=0,
        high=10_000,
    )
    interpolation_multiplier: int = parameter(
        1,
        'commands per action: the command rate as a multiple of the policy rate',
        low=1,
        high=100,
    )
    max_action_age_s: float = parameter(
        3.0,
        'staleness bound: an action with an older observation is discarded',
        unit='s',
        low=0.05,
        high=60.0,
    )

    # the connection
    degraded_after_s: float = parameter(
        0.35,
        'the connection is DEGRADED when a due chunk is missing for this long, or a request '
        'failed, while the queue holds actions; below request_threshold_s',
        unit='s',
        low=0.05,
        high=60.0,
        live=True,
    )
    reconnect_initial_backoff_s: float = parameter(
        0.5,
        'longest wait before the next attempt after all servers failed; doubled each time',
        unit='s',
        low=0.05,
        high=10.0,
    )
    reconnect_max_backoff_s: float = parameter(
        10.0, 'upper limit of the wait between attempts', unit='s', low=0.05, high=300.0
    )
    max_offline_s: float = parameter(
        60.0,
        'the connection is DEAD after this long without a session, if one existed before or every '
        'server rejects this robot permanently',
        unit='s',
        low=1.0,
        high=86400.0,
        live=True,
    )

    camera_frozen_after_s: float = parameter(
        2.0,
        'a camera is frozen when its frame stays identical for this long while the robot moves; '
        '0: never',
        unit='s',
        low=0.0,
        high=60.0,
    )
    on_frozen_camera: str = parameter(
        'warn',
        'action on a frozen camera: log a warning, or stop sending observations until the image '
        'changes',
        choices=('warn', 'stop_observations'),
    )

    # safety
    fallback_ladder: tuple[str, ...] = parameter(
        (),
        'fallback rungs without fresh actions, each with its duration in seconds except the last: '
        'ramp, hold, repeat_last, zero, safe_pose, initial_pose, stop_service; empty: ramp 0.5 '
        '(or as long as the robot needs to stop), then hold, or zero for a robot with velocities '
        'only',
    )
    resume_threshold_s: float = parameter(
        0.1,
        'after a fallback, execution resumes when the queue holds this much, or is not empty for '
        'this long',
        unit='s',
        low=0.0,
        high=10.0,
    )
    latch_after_trips: int = parameter(
        150,
        'consecutive trips after which the safety cage latches until ~/reset_cage; 0: never',
        low=0,
        high=1_000_000,
    )
    start_tolerance: float = parameter(
        0.05,
        'how far outside its limits a joint may be at the first command, as a share of its range',
        low=0.0,
        high=10.0,
    )
    state_timeout_s: float = parameter(
        0.5,
        'a control step this late, or no new state for this long (or for its max_age_s), ends all '
        'that is known of the robot: no commands until new samples agree; at least three control '
        'steps',
        unit='s',
        low=0.0,
        high=10.0,
    )
    clamp_alarm_window_s: float = parameter(
        1.0,
        'window of the clamp alarm: an error is logged when half of its joint-steps or more were '
        'clamped; the safety cage latches when as many targets were outside the position limits; '
        '0: never',
        unit='s',
        low=0.0,
        high=60.0,
    )
    teardown: str = parameter(
        'hold',
        'motion after the connection is DEAD in an episode that is not paused, once the robot is '
        'at rest: hold; safe_pose or initial_pose (that of the start of the episode): move there, '
        'call the stop service if one is set and send no more commands; stop_service: call it at '
        'once and send no more commands',
        choices=('hold', 'safe_pose', 'initial_pose', 'stop_service'),
    )
    stop_service: str = parameter(
        '',
        'full name of the std_srvs/Trigger service that stops the robot; empty: none',
    )
    state_folder: str = parameter(
        '',
        'folder for what survives a restart: pause, takeover, latch of the cage, stop by service; '
        'one for each robot; empty: a folder named after the node below ROS_HOME (~/.ros)',
    )
    while_paused: str = parameter(
        'hold',
        'while paused: slow down to rest and hold, or no_command, so that another controller can '
        'take over',
        choices=('hold', 'no_command'),
    )
    status_period_s: float = parameter(0.2, 'period of ~/state', unit='s', low=0.02, high=10.0)

    # metrics and trace
    metrics_port: int = endpoint_settings.metrics_port()
    metrics_address: str = endpoint_settings.metrics_address()
    trace_folder: str = trace_settings.trace_folder(
        'each command, the result of each request, and drops'
    )
    trace_file_limit_mb: int = trace_settings.trace_file_limit_mb()
    trace_max_files: int = trace_settings.trace_max_files()
    trace_images: str = trace_settings.trace_images()
    trace_instructions: str = trace_settings.trace_instructions()

    @staticmethod
    def complete(values: dict[str, Any]) -> dict[str, Any]:
        """Return the values merged over the defaults of their profile."""
        return with_profile(values)

    def check(self) -> None:
        """Raise ParameterError for values that conflict or do not fit a message."""
        if len(self.task.encode()) > TASK_LIMIT:
            raise ParameterError(
                f'task must have at most {TASK_LIMIT} bytes, got {len(self.task.encode())}'
            )
        read_tags(self.tags)
        _check_servers(self.servers)
        if self.servers_over_zenoh and not (self.zenoh_connect or self.zenoh_listen):
            raise ParameterError(
                f'{self.servers_over_zenoh[0]} is reached over Zenoh; set zenoh_connect to its '
                'endpoint, such as tcp/192.168.1.5:7447'
            )
        zenoh_settings = (self.zenoh_connect, self.zenoh_listen, self.zenoh_keys)
        if not self.servers_over_zenoh and any(zenoh_settings):
            raise ParameterError(
                'zenoh_connect, zenoh_listen or zenoh_keys is set, and no server is reached over '
                'Zenoh; set link to zenoh, or name a server zenoh:/policy_server'
            )
        _check_times(self)
        _check_chunks(self)
        _check_stop(self.stop_service, self.fallback_ladder, self.teardown)

    @property
    def servers_over_zenoh(self) -> tuple[str, ...]:
        """The servers that are reached over Zenoh: those named so, or by `link` without a link."""
        by_default = self.link == 'zenoh'
        return tuple(
            server
            for server in self.servers
            if is_over_zenoh(server) or (by_default and not server.startswith(OVER_ROS))
        )

    @property
    def servers_over_ros(self) -> tuple[str, ...]:
        """The other servers, by the names of their nodes."""
        others = (server for server in self.servers if server not in self.servers_over_zenoh)
        return tuple(server.removeprefix(OVER_ROS) for server in others)

    @property
    def server_names(self) -> tuple[str, ...]:
        """The servers as the links name them, in order of preference."""
        return tuple(server.removeprefix(OVER_ROS) for server in self.servers)

    def command_period_s(self, fps: float) -> float:
        """Return the time between two commands of a robot with `fps` actions per second [s]."""
        return 1 / (fps * self.interpolation_multiplier)


def read_tags(texts: tuple[str, ...]) -> tuple[KeyValue, ...]:
    """Raises ParameterError."""
    tags = []
    for text in texts:
        key, separator, value = text.partition('=')
        fits = separator and key and is_printable(key, TAG_KEY_LIMIT)
        if not (fits and is_printable(value, TAG_VALUE_LIMIT)):
            raise ParameterError(
                f'tags must be KEY=VALUE in printable text, a key of at most {TAG_KEY_LIMIT} and '
                f'a value of at most {TAG_VALUE_LIMIT} bytes, got {text!r}'
            )
        tags.append(KeyValue(key, value))
    if len(tags) > TAGS_LIMIT:
        raise ParameterError(f'tags may have {TAGS_LIMIT} entries, got {len(tags)}')
    return tuple(tags)


def _check_servers(servers: tuple[str, ...]) -> None:
    if not servers:
        raise ParameterError('servers must name at least one, like /policy_server, got none')
    names = [server.removeprefix(OVER_ROS) for server in servers]
    for name, server in zip(names, servers, strict=True):
        has_two_links = name != server and is_over_zenoh(name)
        if has_two_links or not is_topic(node_name(name)):
            raise ParameterError(
                'servers must be full names of nodes like /policy_server, or like '
                f'zenoh:/policy_server or ros:/policy_server, got {server!r}'
            )
        if names.count(name) > 1:
            raise ParameterError(f'servers must differ, got {name} twice')


def _check_times(given: EdgeParameters) -> None:
    if given.request_threshold_s >= given.max_action_age_s:
        raise ParameterError(
            f'request_threshold_s must be below max_action_age_s ({given.max_action_age_s:g}), '
            f'got {given.request_threshold_s:g}: chunks would be stale before they are executed'
        )
    if given.degraded_after_s >= given.request_threshold_s:
        raise ParameterError(
            f'degraded_after_s must be below request_threshold_s ({given.request_threshold_s:g}), '
            f'got {given.degraded_after_s:g}: the queue would be empty before the alarm'
        )
    if given.resume_threshold_s >= given.max_action_age_s:
        raise ParameterError(
            f'resume_threshold_s must be below max_action_age_s ({given.max_action_age_s:g}), got '
            f'{given.resume_threshold_s:g}: actions would be stale before execution resumes'
        )
    if given.reconnect_initial_backoff_s > given.reconnect_max_backoff_s:
        raise ParameterError(
            'reconnect_initial_backoff_s must be at most reconnect_max_backoff_s '
            f'({given.reconnect_max_backoff_s:g}), got {given.reconnect_initial_backoff_s:g}'
        )
    if given.reconnect_max_backoff_s >= given.max_offline_s:
        raise ParameterError(
            f'reconnect_max_backoff_s must be below max_offline_s ({given.max_offline_s:g}), got '
            f'{given.reconnect_max_backoff_s:g}: the connection would be '
            'DEAD before the next attempt'
        )


def _check_chunks(given: EdgeParameters) -> None:
    if given.merge_mode == 'append' and not given.rtc and given.skip_rule != 'moving_time':
        raise ParameterError(
            f"skip_rule {given.skip_rule!r} has no effect with merge 'append' and without rtc, "
            "where no row is skipped; remove it, set rtc, or set merge 'replace'"
        )
    if given.execution_horizon and not given.rtc:
        raise ParameterError(
            f'execution_horizon must be 0 without rtc, got {given.execution_horizon}'
        )


def _check_stop(stop_service: str, ladder: tuple[str, ...], teardown: str) -> None:
    """Raise ParameterError for a stop service that is never called, or called without a name."""
    in_ladder = any(rung.split(' ')[0] == 'stop_service' for rung in ladder)
    if stop_service and not is_topic(stop_service):
        raise ParameterError(
            f'stop_service must be the full name of a service like /arm/stop, got {stop_service!r}'
        )
    if stop_service and not in_ladder and teardown == 'hold':
        raise ParameterError(
            f'stop_service {stop_service!r} would never be called: add the rung stop_service to '
            "the ladder, or set a teardown other than 'hold'"
        )
    if not stop_service and (in_ladder or teardown == 'stop_service'):
        where = 'the ladder' if in_ladder else 'teardown'
        raise ParameterError(
            f'stop_service is empty, and {where} calls it; set the name of a service'
        )
