# SPDX-License-Identifier: Apache-2.0
"""Cross-parameter checks of the edge controller. Pure functions; run at start-up."""

from __future__ import annotations

from lerobot_serve.parameters import ParameterError
from lerobot_serve.wire.names import is_topic


def check_stop(stop_service: str, ladder: tuple[str, ...], teardown: str) -> None:
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
