# SPDX-License-Identifier: Apache-2.0
"""What a server and a session agreed, over either link. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lerobot_serve.contract.limits import SCHEMA_VERSION


class Agreement(Protocol):
    """The part of OpenSession's response that a session uses."""

    @property
    def policy(self) -> str:
        """The fingerprint."""

    @property
    def schema_version(self) -> int: ...

    @property
    def chunk_size(self) -> int: ...

    @property
    def observation_steps(self) -> int: ...

    @property
    def observation_stride_steps(self) -> int: ...

    @property
    def codec(self) -> int: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class GatewayAgreement:
    """The Agreement with a gateway; `client_id` is the name of the session at the router."""

    client_id: str
    policy: str
    chunk_size: int
    codec: int
    warnings: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION
    # a gateway refuses policies with a history
    observation_steps: int = 1
    observation_stride_steps: int = 1
