# SPDX-License-Identifier: Apache-2.0
"""Read and check policy.json of the demo policy. No torch, any thread."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from lerobot_serve.files.load import Record
from lerobot_serve.policies.files.policy_folder import CameraJson, PolicyJson, Size

KIND = 'builtin.reach'
WEIGHTS_FILE = 'model.safetensors'


class ReachSizes(Record, frozen=True):
    """The sizes of the network, beside those of its inputs and outputs."""

    image_pixels: Size
    channels: tuple[Size, Size]
    hidden: Size


class ReachSettings(PolicyJson, frozen=True):
    """policy.json of the demo policy; `cameras` are the fixed one and the wrist's, in order."""

    kind: Literal['builtin.reach']
    cameras: Annotated[
        tuple[CameraJson, ...],
        Meta(
            min_length=2,
            max_length=2,
            description="a list of two cameras, the fixed one and the wrist's",
        ),
    ]
    network: ReachSizes

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action_names != self.state_names:
            raise ValueError(
                'action_names must equal state_names, because the chunk is relative to the state, '
                f'got {list(self.action_names)} and {list(self.state_names)}'
            )
