# SPDX-License-Identifier: Apache-2.0
"""The ways in which a robot of this package sends its pictures over a link. Plain."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.peer_process import ImageSet
from lerobot_serve.contract.schema import Codec

# after which a trip is lost, with everybody
ANSWER_S = 20.0


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    """How pictures are sent; `height` and `width` are the policy's, 0 to leave them as large."""

    codec: Codec
    quality: int = 0
    height: int = 0
    width: int = 0
    over_zenoh: bool = False

    def suits(self, size: ImageSet) -> bool:
        """Return whether it is another way than the others where pictures are of this size."""
        return not self.height or (self.height < size.height and self.width < size.width)


DEFAULT, ZENOH, ZENOH_RAW = 'JPEG 90', 'Zenoh JPEG 90', 'Zenoh raw'
ZENOH_WAN, ZENOH_DOWNSCALED = 'Zenoh JPEG 80', 'Zenoh JPEG 80, downscaled'
ENCODINGS = {
    DEFAULT: ImageEncoding(Codec.JPEG, 90),
    'JPEG 60': ImageEncoding(Codec.JPEG, 60),
    'JPEG 90, downscaled': ImageEncoding(Codec.JPEG, 90, 224, 224),
    'raw': ImageEncoding(Codec.RAW),
    ZENOH: ImageEncoding(Codec.JPEG, 90, over_zenoh=True),
    # the quality of the network profile wan
    ZENOH_WAN: ImageEncoding(Codec.JPEG, 80, over_zenoh=True),
    ZENOH_DOWNSCALED: ImageEncoding(Codec.JPEG, 80, 224, 224, over_zenoh=True),
    ZENOH_RAW: ImageEncoding(Codec.RAW, over_zenoh=True),
}
