# SPDX-License-Identifier: Apache-2.0
"""Options that name a policy, as parameters of a policy_server. Pure functions; any thread."""

from __future__ import annotations

import argparse
from typing import Any

from lerobot_serve.parameters import (
    build_parameters,
    parameter_specs,
    ParameterError,
    ParameterSpec,
)
from lerobot_serve.server.parameters import ServerParameters

# more sessions than any recording has, so that none is refused
SESSIONS = 4096
WORDS = {'true': True, 'false': False}


def server_parameters(options: argparse.Namespace) -> ServerParameters:
    """Return the parameters of the policy_server. Raises ParameterError."""
    known = {spec.name: spec for spec in parameter_specs(ServerParameters)}
    values: dict[str, Any] = {
        'policy_kind': options.kind,
        'policy_path': options.policy,
        'device': options.device,
        'max_sessions': SESSIONS,
        'max_sessions_per_process': SESSIONS,
    }
    for given in options.parameters:
        name, equals, text = given.partition('=')
        if not equals or name not in known:
            raise ParameterError(
                f'--parameter must be NAME=VALUE of a policy_server, got {given!r}'
            )
        values[name] = value_of(known[name], text)
    return build_parameters(ServerParameters, values)


def value_of(spec: ParameterSpec, text: str) -> Any:
    """Return the parsed value of a parameter, or the text if it cannot be parsed."""
    if spec.kind is tuple:
        return tuple(part.strip() for part in text.split(','))
    if spec.kind is bool:
        return WORDS.get(text, text)
    try:
        return spec.kind(text)
    except ValueError:
        return text
