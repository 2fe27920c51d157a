"""What parameters of the edge must be to each other. Pure functions; before anything runs."""

from __future__ import annotations

from lerobot_serve.parameters import ParameterError
from lerobot_serve.wire.names import is_topic


def check_stop(stop_service: str, ladder: tuple[str, ...], teardown: str) -> None:
    """Raise ParameterError for a stop that is never called, or is called and not named."""
    in_ladder = any(rung.split(' ')[0] == 'stop_service' for rung in ladder)
    if stop_service and not is_topic(stop_service):
        raise ParameterError(
            f'stop_service must be the full name of a service like /arm/stop, got {stop_service!r}'
        )
    if stop_service and not in_ladder and teardown == 'hold':
        raise ParameterError(
            f'stop_service {stop_service!r} would never be called: neither the ladder has '
            "the rung stop_service nor does teardown end with it, as all but 'hold' do"
        )
    if not stop_service and (in_ladder or teardown == 'stop_service'):
        where = 'the ladder' if in_ladder else 'teardown'
        raise ParameterError(f'stop_service is empty, and {where} calls it; name a service')
