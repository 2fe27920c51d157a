# SPDX-License-Identifier: Apache-2.0
"""Options that name a policy, as parameters of a policy_server. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lerobot_serve.parameters import build_parameters, parameter_specs, ParameterError
from lerobot_serve.policies.lerobot.hub import local_folder
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.cli.node_flags import value_of

# more sessions than any recording has, so that none is refused
SESSIONS = 4096


def server_parameters(
    kind: str, policy: str, device: str, parameters: Iterable[str]
) -> ServerParameters:
    """
    Return the parameters of the policy_server, with the folder of a policy of the hub.

    Raises ParameterError, and PolicyError for a policy that cannot be downloaded.
    """
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
