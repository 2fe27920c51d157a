# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lerobot_serve.contract.names import is_over_zenoh, is_topic, node_name
from lerobot_serve.gateway import door_parameters as door
from lerobot_serve.gateway.doors import DOORS
from lerobot_serve.parameters import (
    closest_name,
    parameter,
    parameter_specs,
    ParameterError,
    ParameterSpec,
)
from lerobot_serve.telemetry import metrics_parameters as endpoint_settings
from lerobot_serve.zenoh import zenoh_parameters as zenoh


@dataclass(frozen=True, slots=True)
class GatewayParameters:
    """Parameters of gateway; docs/parameters.md is generated from them."""

    doors: tuple[str, ...] = parameter(
        ('http',),
        f'protocols that are offered, each on a port of its own: {", ".join(DOORS)}',
    )

    # the router
    server: str = parameter(
        '/policy_router', 'full name of the policy router, or of one policy server'
    )
    link: str = zenoh.link()
    zenoh_connect: tuple[str, ...] = zenoh.zenoh_connect()
    zenoh_listen: tuple[str, ...] = zenoh.zenoh_listen()
    zenoh_site: str = zenoh.zenoh_site()
    zenoh_keys: str = zenoh.zenoh_keys()
    required_policy: str = parameter(
        '', 'policy that sessions require, by fingerprint or id; empty: any policy'
    )
    codec: str = parameter(
        'raw',
        'image encoding on the way to the router: jpeg over a network, raw on one machine',
        choices=('jpeg', 'raw'),
    )
    jpeg_quality: int = parameter(90, 'quality of JPEG images', low=1, high=100)
    downscale: bool = parameter(
        False, 'resize images to the input size of the policy where that is smaller'
    )
    image_threads: int = parameter(
        2, 'threads that resize images and encode JPEG images', low=1, high=32
    )

    # callers
    max_callers: int = parameter(
        64, 'maximum number of callers with a session; further ones are refused', low=1, high=4096
    )
    request_timeout_s: float = parameter(
        5.0,
        'deadline of a request, also of one whose caller allows more',
        unit='s',
        low=0.05,
        high=600.0,
    )
    idle_timeout_s: float = parameter(
        50.0,
        'time without a request after which the session of a caller is closed, and opened again '
        'for its next request; below session_idle_s of router and servers',
        unit='s',
        low=1.0,
        high=86400.0,
    )
    drain_timeout_s: float = parameter(
        3.0, 'longest wait for running requests at the end', unit='s', low=0.0, high=60.0
    )

    # metrics
    metrics_port: int = endpoint_settings.metrics_port()
    metrics_address: str = endpoint_settings.metrics_address()

    # doors
    http_port: int = door.port('http', DOORS['http'].port)
    http_host: str = door.host('http')
    http_tokens_file: str = door.tokens_file('http')
    http_allow_anyone: bool = door.allow_anyone('http')
    http_certificate_file: str = door.certificate_file('http')
    http_key_file: str = door.key_file('http')
    http_mapping: str = door.mapping('http')
    http_max_message_mb: int = door.max_message_mb('http')
    http_read_timeout_s: float = door.read_timeout_s('http')
    http_write_timeout_s: float = door.write_timeout_s('http')
    http_max_connections: int = door.max_connections('http')

    openpi_port: int = door.port('openpi', DOORS['openpi'].port)
    openpi_host: str = door.host('openpi')
    openpi_tokens_file: str = door.tokens_file('openpi')
    openpi_allow_anyone: bool = door.allow_anyone('openpi')
    openpi_certificate_file: str = door.certificate_file('openpi')
    openpi_key_file: str = door.key_file('openpi')
    openpi_mapping: str = door.mapping('openpi')
    openpi_max_message_mb: int = door.max_message_mb('openpi')
    openpi_read_timeout_s: float = door.read_timeout_s('openpi')
    openpi_write_timeout_s: float = door.write_timeout_s('openpi')
    openpi_max_connections: int = door.max_connections('openpi')
    openpi_ping_interval_s: float = door.ping_interval_s('openpi')

    lerobot_port: int = door.port('lerobot', DOORS['lerobot'].port)
    lerobot_host: str = door.host('lerobot')
    lerobot_tokens_file: str = door.tokens_file('lerobot')
    lerobot_allow_anyone: bool = door.allow_anyone('lerobot')
    lerobot_certificate_file: str = door.certificate_file('lerobot')
    lerobot_key_file: str = door.key_file('lerobot')
    lerobot_mapping: str = door.mapping('lerobot')
    lerobot_action_order_confirmed: bool = parameter(
        False,
        'confirms that the action_features of the robots are in the order of the policy, where '
        'their state names are others; LeRobot sends no names of actions',
        name='lerobot.action_order_confirmed',
    )
    lerobot_policy_names: tuple[str, ...] = parameter(
        (),
        'further values of pretrained_name_or_path that are accepted, * for any; nothing is '
        'loaded by them; without them a client must name the policy that is served',
        name='lerobot.policy_names',
    )
    lerobot_max_message_mb: int = door.max_message_mb('lerobot', 32)
    lerobot_max_connections: int = door.max_connections('lerobot')

    policy_service_port: int = door.port('policy_service', DOORS['policy_service'].port)
    policy_service_host: str = door.host('policy_service')
    policy_service_tokens_file: str = door.tokens_file('policy_service')
    policy_service_allow_anyone: bool = door.allow_anyone('policy_service')
    policy_service_certificate_file: str = door.certificate_file('policy_service')
    policy_service_key_file: str = door.key_file('policy_service')
    policy_service_mapping: str = door.mapping('policy_service')
    policy_service_max_message_mb: int = door.max_message_mb('policy_service', 32)
    policy_service_max_connections: int = door.max_connections('policy_service')

    groot_port: int = door.port('groot', DOORS['groot'].port)
    groot_host: str = door.host('groot')
    groot_tokens_file: str = door.tokens_file('groot')
    groot_allow_anyone: bool = door.allow_anyone('groot')
    groot_certificate_file: str = door.certificate_file('groot')
    groot_key_file: str = door.key_file('groot')
    groot_mapping: str = door.mapping('groot')
    groot_max_message_mb: int = door.max_message_mb('groot')
    groot_handshake_timeout_s: float = door.handshake_timeout_s('groot')
    groot_read_timeout_s: float = door.read_timeout_s('groot')
    groot_write_timeout_s: float = door.write_timeout_s('groot')
    groot_max_connections: int = door.max_connections('groot')
    groot_language_key: str = parameter(
        'annotation.human.task_description',
        'key of the task in the reply to get_modality_config',
        name='groot.language_key',
    )

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other or have no effect."""
        self._check_doors()
        if not is_topic(node_name(self.server)):
            raise ParameterError(
                'server must be the full name of a node, such as /policy_router or '
                f'zenoh:/policy_router, got {self.server!r}'
            )
        if self.is_over_zenoh and not (self.zenoh_connect or self.zenoh_listen):
            raise ParameterError(
                f'{self.server} is reached over Zenoh; set zenoh_connect to its endpoint or that '
                'of a Zenoh router, such as tcp/192.168.1.5:7447'
            )
        if not self.is_over_zenoh and any(
            (self.zenoh_connect, self.zenoh_listen, self.zenoh_keys)
        ):
            raise ParameterError(
                'zenoh_connect, zenoh_listen or zenoh_keys is set, and the router is not reached '
                'over Zenoh; set link to zenoh'
            )

    @property
    def is_over_zenoh(self) -> bool:
        """Whether the router is reached over Zenoh."""
        return self.link == 'zenoh' or is_over_zenoh(self.server)

    def _check_doors(self) -> None:
        if not self.doors:
            raise ParameterError(f'doors is empty; name one or more of {", ".join(DOORS)}')
        for name in self.doors:
            if name not in DOORS:
                near = closest_name(name, DOORS)
                hint = f'; did you mean {near}?' if near else ''
                raise ParameterError(f'doors: {name!r} is not one of {", ".join(DOORS)}{hint}')
        if len(set(self.doors)) < len(self.doors):
            raise ParameterError(f'doors names a door twice: {", ".join(self.doors)}')
        for spec in parameter_specs(type(self)):
            owner = door_of(spec)
            if owner and owner not in self.doors and getattr(self, spec.field) != spec.default:
                raise ParameterError(
                    f'{spec.name} is set, and doors does not name {owner}; add {owner} to doors, '
                    f'or leave {spec.name} at its default'
                )


def door_of(spec: ParameterSpec) -> str:
    """Return the door of a parameter; empty for one of the gateway."""
    name, dot, _ = spec.name.partition('.')
    return name if dot else ''


def door_settings(parameters: GatewayParameters, name: str) -> dict[str, Any]:
    """Return the parameters of a door by their names without the prefix."""
    return {
        spec.name.partition('.')[2]: getattr(parameters, spec.field)
        for spec in parameter_specs(GatewayParameters)
        if door_of(spec) == name
    }
