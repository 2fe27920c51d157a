# SPDX-License-Identifier: Apache-2.0
"""The quality of service of each kind of traffic."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Quality(NamedTuple):
    """
    `priority` is a name of zenoh.Priority. `express` sends without batching. With `blocks` a
    sender waits for its own uplink; otherwise a message that finds it full for 20 ms is lost.
    """

    priority: str
    express: bool = False
    blocks: bool = False


class Traffic(Enum):
    """
    A chunk overtakes the images of all others, as does a notice, a call for whose reply no thread
    waits; shadow requests wait for all other traffic. The request thread of a robot waits for its
    own uplink. A thread that serves several peers does not: one that is cut off must not hold up
    another. It leaves what has to wait to the LinkSender of that peer.
    """

    CHUNK = Quality('INTERACTIVE_HIGH', express=True)
    LATE_CHUNK = Quality('INTERACTIVE_HIGH', express=True, blocks=True)
    OBSERVATION = Quality('DATA', blocks=True)
    NOTICE = Quality('DATA_HIGH')
    SHADOW = Quality('BACKGROUND')
    STATUS = Quality('DATA_LOW')
