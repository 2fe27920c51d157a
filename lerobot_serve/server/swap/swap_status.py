# SPDX-License-Identifier: Apache-2.0
"""How the last swap of the policy ended, as ServerStatus has it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.records import ServerStatus

SwapState = ServerStatus.Swap


@dataclass(frozen=True, slots=True)
class SwapStatus:
    """The last swap, in a word and in a sentence."""

    state: SwapState = SwapState.NONE
    text: str = ''
