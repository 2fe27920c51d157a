# SPDX-License-Identifier: Apache-2.0
"""Encode the images of a request; what takes long has the threads of a pool. Event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_size import downscale, is_larger
from lerobot_serve.contract.schema import Codec
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.upstream import PolicyContract


class ImageEncoder:
    """Owns the pool."""

    def __init__(self, settings: GatewayParameters) -> None:
        self._settings, self.codec = settings, Codec.named(settings.codec)
        self._pool = ThreadPoolExecutor(settings.image_threads, 'image')

    async def encode(
        self, images: Mapping[str, Uint8Array], contract: PolicyContract
    ) -> tuple[Image, ...]:
        """Return the images in wire form. Raises Unencodable."""
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[Image]] = []
        ready: list[Image] = []
        for name, frame in images.items():
            size = self._size(name, contract)
            if self.codec is Codec.RAW and not is_larger(frame, *size):
                ready.append(self._encode(name, frame, size))
            else:
                waiting.append(loop.run_in_executor(self._pool, self._encode, name, frame, size))
        # an empty gather costs a turn of the loop
        return (*ready, *await asyncio.gather(*waiting)) if waiting else tuple(ready)

    def _size(self, name: str, contract: PolicyContract) -> tuple[int, int]:
        if not self._settings.downscale:
            return 0, 0
        height, width, _ = contract.cameras.get(name, (0, 0, 3))
        return height, width

    def _encode(self, name: str, frame: Uint8Array, size: tuple[int, int]) -> Image:
        small, quality = downscale(frame, *size), self._settings.jpeg_quality
        return image_codec.encode(name, small, self.codec, quality=quality)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
