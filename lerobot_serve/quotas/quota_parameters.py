# SPDX-License-Identifier: Apache-2.0
"""The parameters of quotas, which are the same in router and server."""

from __future__ import annotations

from lerobot_serve.parameters import parameter
from lerobot_serve.quotas.rules import EXAMPLE


def quotas() -> tuple[str, ...]:
    """Return the parameter `quotas`."""
    return parameter(
        (),
        f'rules like {EXAMPLE}: what each robot whose client_id matches may use, the first match '
        "counts; 'group lab_*: ...': what all that match may use together; empty: no quota",
        live=True,
    )


def quota_burst_s() -> float:
    """Return the parameter `quota_burst_s`."""
    return parameter(
        2.0,
        'a robot or group that was silent may use up this much of its quota at once',
        unit='s',
        low=0.1,
        high=3600.0,
        live=True,
    )
