# SPDX-License-Identifier: Apache-2.0
"""The ways in which a robot of this package sends its pictures over a link. Plain."""

from __future__ import annotations

from benchmarks.peers.peer_process import Way
from lerobot_serve.contract.schema import Codec

# after which a trip is lost, with everybody
ANSWER_S = 20.0


DEFAULT, ZENOH, ZENOH_RAW = 'JPEG 90', 'Zenoh JPEG 90', 'Zenoh raw'
ZENOH_WAN, ZENOH_DOWNSCALED = 'Zenoh JPEG 80', 'Zenoh JPEG 80, downscaled'
ENCODINGS = {
    DEFAULT: Way(codec=Codec.JPEG),
    'JPEG 60': Way(codec=Codec.JPEG, quality=60),
    'JPEG 90, downscaled': Way(codec=Codec.JPEG, height=224, width=224),
    'raw': Way(),
    ZENOH: Way(codec=Codec.JPEG, over_zenoh=True),
    # the quality of the network profile wan
    ZENOH_WAN: Way(codec=Codec.JPEG, quality=80, over_zenoh=True),
    ZENOH_DOWNSCALED: Way(codec=Codec.JPEG, quality=80, height=224, width=224, over_zenoh=True),
    ZENOH_RAW: Way(over_zenoh=True),
}
