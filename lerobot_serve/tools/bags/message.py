# SPDX-License-Identifier: Apache-2.0
"""One recorded message, the types of those that tools read, and the error of bags. Any thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from lerobot_serve.contract import records
from lerobot_serve.contract.codec import decode
from lerobot_serve.errors import UserError

PACKAGE = 'lerobot_serve_interfaces'
INTERFACES = f'{PACKAGE}/msg'
OBSERVATION = f'{INTERFACES}/Observation'
CHUNK = f'{INTERFACES}/ActionChunk'
EXECUTED = f'{INTERFACES}/ExecutedAction'
EDGE_STATE = f'{INTERFACES}/EdgeState'
DECISION = f'{INTERFACES}/RoutingDecision'
OUTCOME = f'{INTERFACES}/EpisodeOutcome'
DIVERGENCE = f'{INTERFACES}/ShadowDivergence'
SERVER_STATUS = f'{INTERFACES}/ServerStatus'
ROUTER_STATE = f'{INTERFACES}/RouterState'
CANARY_STATE = f'{INTERFACES}/CanaryState'
TEXT_TYPE, ROBOT_FILE = 'std_msgs/msg/String', 'robot_file'
DIAGNOSTICS = '/diagnostics'


class BagError(UserError, ValueError):
    """A bag that cannot be read or created; the text has path, reason and remedy."""


class BagMessage(NamedTuple):
    """
    One recorded message: the full names of topic and type, its reception time (nanoseconds since
    1970), its CDR bytes, and the source timestamp that its writer gave it, 0 for unknown (SQLite).
    """

    topic: str
    type: str
    stamp_ns: int
    data: bytes
    sent_ns: int = 0

    def record(self) -> Any:
        """Return it as the class of its type in `contract.records`. Raises Malformed."""
        return decode(getattr(records, self.type.rpartition('/')[2]), self.data)

    @property
    def node(self) -> str:
        """The node of a topic `~/...`."""
        return self.topic.rpartition('/')[0]

    @property
    def is_robot_file(self) -> bool:
        """Whether it is ~/robot_file of an edge controller."""
        return is_robot_file(self.topic, self.type)


def is_robot_file(topic: str, kind: str) -> bool:
    """Return whether it is ~/robot_file of an edge controller."""
    return kind == TEXT_TYPE and topic.rpartition('/')[2] == ROBOT_FILE
