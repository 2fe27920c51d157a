# SPDX-License-Identifier: Apache-2.0
"""Routers with one state folder, each of which is killed before the next one starts."""

from __future__ import annotations

from pathlib import Path
import shutil

from lerobot_serve_interfaces.srv import ControlSlot
from support.router.router_core_rig import RoutingRig, SECOND, TWO_SLOTS

PLAN = ('5', '100')


class Routers:
    """Routers that start one after the other; their file may say something else each time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rig = folder, None

    def start(self, **file: object) -> RoutingRig:
        """A router starts, with these values in its file; the one before was killed at rest."""
        if self.rig:
            self.rig.core.writer.flush()
            self.kill()
        self.rig = RoutingRig(self.folder, **TWO_SLOTS, **file)
        return self.rig

    def kill(self) -> None:
        """What the system has is what the next one finds."""
        killed = self.folder.with_name(f'{self.folder.name}x')
        shutil.copytree(self.folder, killed)
        self.rig.close()
        self.folder, self.rig = killed, None

    def set_live(self, **values: object) -> None:
        self.rig.set_live(**values)

    def roll_back(self) -> None:
        """A plan is given live, and its policy is rolled back by hand."""
        self.set_live(canary_plan=PLAN)
        self.poll()
        self.rig.command(ControlSlot.Request.CANARY_ROLLBACK, reason='arm hit the table')

    def poll(self) -> None:
        """The canary decides."""
        self.rig.now_ns += SECOND
        self.rig.core.update_canary()
