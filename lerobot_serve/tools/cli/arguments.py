# SPDX-License-Identifier: Apache-2.0
"""Arguments that several verbs have, and what they mean. The main thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TYPE_CHECKING

from lerobot_serve.parameters import build_parameters, parameter_specs, ParameterError
from lerobot_serve.tools.cli.node_flags import value_of
from lerobot_serve.tools.cli.signature import Argument

if TYPE_CHECKING:
    from lerobot_serve.server.parameters import ServerParameters
    from lerobot_serve.zenoh.settings import ZenohSettings


DEFAULT_SITE = 'default'
Endpoints = Sequence[str]

TracePaths = Annotated[
    Sequence[str],
    Argument(
        'trace file of an edge, a router or a server, a folder with traces, or a bag '
        '(the trace_folder of the router)',
        'PATH',
    ),
]
Parameters = Annotated[
    Sequence[str],
    Argument(
        'further parameter of the policy_server, for example default_task=fold',
        'NAME=VALUE',
        flags=('--parameter',),
    ),
]


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The settings of a Zenoh link, named as the parameters of the nodes without zenoh_."""

    listen: Annotated[
        Endpoints,
        Argument(
            'wait for servers and robots whose zenoh_connect names this endpoint',
            'ENDPOINT',
            nargs='+',
        ),
    ] = ()
    site: Annotated[str, Argument('zenoh_site of the nodes', 'NAME')] = DEFAULT_SITE
    keys: Annotated[str, Argument('zenoh_keys of this machine, for tls/ and quic/', 'FOLDER')] = ''
    client: Annotated[
        str,
        Argument('name in the keys of its queries, which access control may restrict', 'NAME'),
    ] = 'lerobot-serve-link'
    servers: Annotated[
        Sequence[str],
        Argument(
            'full names of servers and routers, such as /policy_router; access control hides '
            'those that are not named',
            'NAME',
            flags=('--server',),
            nargs='+',
        ),
    ] = ()

    def settings(self, connect: Endpoints) -> ZenohSettings:
        """Return the settings of a link to `connect`, unchecked."""
        from lerobot_serve.zenoh.settings import ZenohSettings

        keys = Path(self.keys).expanduser() if self.keys else None
        return ZenohSettings(self.site, tuple(connect), tuple(self.listen), keys)


OBSERVED = (
    'requests and replies over Zenoh, too: endpoints of servers and routers, such as '
    'tcp/192.168.1.5:7447'
)


@dataclass(frozen=True, slots=True)
class ObserverOptions:
    """A link on which a verb sees what passes servers and routers, and sends nothing."""

    site: Annotated[str, Argument('the zenoh_site of the nodes')] = DEFAULT_SITE
    keys: Annotated[
        Path | None, Argument('zenoh_keys: those of `lerobot-serve keys recorder`', 'FOLDER')
    ] = None

    def settings(self, connect: Endpoints) -> ZenohSettings | None:
        """Return the settings of the link, None without an endpoint. Raises UserError."""
        from lerobot_serve.parameters import ParameterError
        from lerobot_serve.zenoh.settings import ZenohSettings

        if connect:
            if self.keys:
                check_recorder(self.keys)
            return ZenohSettings(self.site, tuple(connect), keys=self.keys)
        if self.keys or self.site != DEFAULT_SITE:
            raise ParameterError('--keys and --site are of --connect; give it endpoints')
        return None


def check_recorder(keys: Path) -> None:
    """Raise UserError for keys that hear no requests: access control refuses without a word."""
    from lerobot_serve.errors import UserError
    from lerobot_serve.zenoh.credentials import check_credentials

    name = check_credentials(keys, may_listen=False).common_name
    if not name.startswith('recorder.'):
        raise UserError(
            f'{keys} has the key {name}, which may not hear the requests and replies of robots; '
            'make one with `lerobot-serve keys recorder NAME`, and copy the folders that it names'
        )


# more sessions than any recording has, so that none is refused
SESSIONS = 4096


def server_parameters(
    kind: str, policy: str, device: str, parameters: Iterable[str]
) -> ServerParameters:
    """
    Return the parameters of the policy_server, with the folder of a policy of the hub.

    Raises ParameterError, and PolicyError for a policy that cannot be downloaded.
    """
    from lerobot_serve.policies.lerobot.hub import local_folder
    from lerobot_serve.server.parameters import ServerParameters

    is_folder = kind in ('', 'lerobot')
    known = {spec.name: spec for spec in parameter_specs(ServerParameters)}
    values: dict[str, Any] = {
        'policy_kind': kind,
        'policy_path': local_folder(policy) if is_folder else policy,
        'device': device,
        'max_sessions': SESSIONS,
        'max_sessions_per_process': SESSIONS,
    }
    for given in parameters:
        name, equals, text = given.partition('=')
        if not equals or name not in known:
            raise ParameterError(
                f'--parameter must be NAME=VALUE of a policy_server, got {given!r}'
            )
        values[name] = value_of(known[name], text)
    return build_parameters(ServerParameters, values)
