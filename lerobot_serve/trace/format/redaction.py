# SPDX-License-Identifier: Apache-2.0
"""
Redact images and instructions in a trace: keep all, a hash that still shows equality, or nothing.
Pure; any thread, which computes the hash (about 1 ms for each MB).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from lerobot_serve.contract.data_path.message_parts import Image

LEVELS = ('full', 'hash', 'none')
# node parameters that contain an instruction
INSTRUCTIONS = frozenset({'task', 'default_task'})


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redaction level of images and of instructions, each in LEVELS. Raises ValueError."""

    images: str = 'hash'
    instructions: str = 'full'

    def __post_init__(self) -> None:
        for name in ('images', 'instructions'):
            if getattr(self, name) not in LEVELS:
                raise ValueError(
                    f'{name} must be one of {", ".join(LEVELS)}, got {getattr(self, name)!r}'
                )

    @property
    def keeps_everything(self) -> bool:
        """Return whether a request can be replayed from the trace."""
        return self.images == self.instructions == 'full'

    def task(self, text: str) -> str | None:
        """Return the redacted instruction."""
        if self.instructions == 'none' or not text:
            return None
        if self.instructions == 'hash':
            return 'sha256:' + sha256(text.encode(errors='replace')).hexdigest()
        return text

    def image_records(self, images: Iterable[Image]) -> list[dict[str, Any]] | None:
        """Return the redacted images of a request."""
        if self.images == 'none':
            return None
        return [self._image_record(image) for image in images]

    def value(self, name: str, value: Any) -> Any:
        """Return the redacted value of a parameter."""
        is_plain = name not in INSTRUCTIONS or self.instructions == 'full'
        return value if is_plain else self.task(value)

    def values(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the redacted values of all parameters."""
        return {name: self.value(name, value) for name, value in parameters.items()}

    def _image_record(self, image: Image) -> dict[str, Any]:
        data = bytes(image.data)
        content = (
            {'base64': b64encode(data).decode()}
            if self.images == 'full'
            else {'sha256': sha256(data).hexdigest()}
        )
        return {
            'name': image.name,
            'height': image.height,
            'width': image.width,
            'channels': image.channels,
            'channel_bytes': image.channel_bytes,
            'codec': int(image.codec),
            'steps_back': image.steps_back,
            **content,
        }
