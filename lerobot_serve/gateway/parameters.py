# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node gateway."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.names import is_over_zenoh, is_topic, node_name
from lerobot_serve.gateway.door_parameters import (
    DOORS,
    EndpointSettings,
    with_parameters_of_doors,
)
from lerobot_serve.local import local_parameters as local
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
@with_parameters_of_doors
class GatewayParameters:
    """
    Parameters of gateway, followed by those of its doors; docs/parameters.md is generated from
    them.
    """

    doors: tuple[str, ...] = parameter(
        ('http',),
        f'protocols that are offered, each on a port of its own: {", ".join(DOORS)}',
    )

    # the router
    server: str = parameter(
        '/policy_router', 'full name of the policy router, or of one policy server'
    )
    link: str = zenoh.link()
    local_path: bool = local.local_path(
        True,
        'use the local path to a server of this host',
    )
    local_group: str = local.local_group()
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


def door_settings(parameters: GatewayParameters, name: str) -> EndpointSettings:
    """Return the parameters of a door by their names without the prefix."""
    given = {
        spec.name.partition('.')[2]: getattr(parameters, spec.field)
        for spec in parameter_specs(GatewayParameters)
        if door_of(spec) == name
    }
    return EndpointSettings(**given)
