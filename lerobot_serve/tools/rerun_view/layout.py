# SPDX-License-Identifier: Apache-2.0
"""What a view has: robots with their cameras and joints, and nodes. Pure; one thread."""

from __future__ import annotations

from dataclasses import dataclass, field
import re

from lerobot_serve.tools.rerun_view.mapping.entries import CAMERAS, JOINTS, NODES, Path, ROBOTS

# panels of one tab: more cannot be read
GROUP_LIMIT = 12
SIDE = re.compile(r'(left|right)(?=[_./ -]|$)')
ONLY_GROUP = 'joints'


@dataclass(slots=True)
class RobotLayout:
    """The parts of one robot in the order of their first entries; names are parts of paths."""

    cameras: list[str] = field(default_factory=list)
    joints: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Layout:
    """All parts of a view; `version` grows with each new part."""

    robots: dict[str, RobotLayout] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    version: int = 0
    _known: set[Path] = field(default_factory=set)

    def add(self, path: Path) -> None:
        """Add the part to which an entity belongs."""
        part = path[:4] if path[2:3] in ((CAMERAS,), (JOINTS,)) else path[:2]
        if part in self._known:
            return
        self._known.add(part)
        self.version += 1
        if part[0] == NODES:
            self.nodes.append(part[1])
        if part[0] == ROBOTS:
            robot = self.robots.setdefault(part[1], RobotLayout())
            if part[2:3] == (CAMERAS,):
                robot.cameras.append(part[3])
            elif part[2:3] == (JOINTS,):
                robot.joints.append(part[3])


def joint_groups(joints: list[str]) -> dict[str, list[str]]:
    """
    Return the joints by group: left and right where names say so, at most GROUP_LIMIT in each.
    """
    sides: dict[str, list[str]] = {}
    for joint in joints:
        side = SIDE.match(joint.lower())
        sides.setdefault(side[1] if side else ONLY_GROUP, []).append(joint)
    groups = {}
    for side_name, members in sides.items():
        parts = [members[i : i + GROUP_LIMIT] for i in range(0, len(members), GROUP_LIMIT)]
        for number, part in enumerate(parts, 1):
            groups[f'{side_name} {number}' if len(parts) > 1 else side_name] = part
    return groups
