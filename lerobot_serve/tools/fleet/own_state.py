# SPDX-License-Identifier: Apache-2.0
"""A state folder of its own for the router of each fleet file. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
import hashlib
from pathlib import Path

from lerobot_serve.tools.fleet.plan import FleetProcess, Stage
from lerobot_serve.wire.names import file_name

KEY = 'state_folder'


def with_own_state(
    plan: Iterable[FleetProcess], fleet: Path, home: Path
) -> tuple[FleetProcess, ...]:
    """
    Return the plan with a state folder below `home`, ROS_HOME, for a router that names none. The
    default of a router depends on its name alone: the split and the rollout of another fleet of
    this machine would go on in this one.
    """
    path = str(fleet.absolute())
    digest = hashlib.blake2s(path.encode(), digest_size=4).hexdigest()
    folder = home / 'lerobot_serve' / 'fleets' / f'{file_name(fleet.stem)}-{digest}'
    return tuple(
        replace(each, values={KEY: str(folder), **each.values})
        if each.stage is Stage.ROUTER
        else each
        for each in plan
    )
