# SPDX-License-Identifier: Apache-2.0
"""Protocols of the router's side. All methods run on the event loop of the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import (
    invalid,
    Prediction,
    PredictionError,
    PredictionRequest,
    Status,
)


@dataclass(frozen=True, slots=True)
class PolicyContract:
    """
    What the policy takes and gives, as the router states it.

    policy       id of the policy; a router with several joins them with |
    fingerprint  id@hash, joined likewise
    cameras      (height, width, channels) by name; 0: any
    chunk_steps  actions in a chunk; 0: unknown
    control_hz   control rate the policy was trained at; 0: unknown
    warnings     of an open session: what is worth reading; `text` is of the server
    """

    policy: str
    fingerprint: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: Mapping[str, tuple[int, int, int]]
    chunk_steps: int
    control_hz: float
    policy_type: str = ''
    observation_steps: int = 1
    default_task: str = ''
    task_pinned: bool = False
    warnings: tuple[str, ...] = ()
    text: str = ''


class UpstreamSession(Protocol):
    """The session of one caller."""

    @property
    def contract(self) -> PolicyContract:
        """The contract of the open session."""

    async def predict(self, request: PredictionRequest) -> Prediction:
        """
        Return the prediction for a request. Raises PredictionError: TOO_LATE after its timeout;
        SUPERSEDED when a newer request of this session arrives while this one waits.
        """

    async def close(self) -> None:
        """Close the session. May be called twice; raises nothing."""


class Upstream(Protocol):
    """A policy router, or one policy server."""

    async def describe(self) -> PolicyContract:
        """Return what is served now. Raises PredictionError (UNAVAILABLE)."""

    async def open(
        self, caller: Caller, terms: OpenSessionRequest | None = None
    ) -> UpstreamSession:
        """
        Open the session of a caller, without terms on those of the policy. Raises PredictionError.
        """

    async def close(self) -> None:
        """Release what the sessions share. May be called twice."""


def check_same_names(mapped_for: PolicyContract, now: PolicyContract) -> None:
    """
    Raise PredictionError (UNAVAILABLE) for a request in the names of a policy that was replaced by
    one with other names or another order: its state would reach the wrong inputs.
    """
    for part, old, new in (
        ('state', mapped_for.state_names, now.state_names),
        ('actions', mapped_for.action_names, now.action_names),
    ):
        if old != new:
            raise PredictionError(
                Status.UNAVAILABLE,
                f'the policy was replaced: its {part} were {", ".join(old[:64])} and are '
                f'{", ".join(new[:64])} now; send the next observation, in the names of now',
            )


def check_request(request: PredictionRequest, contract: PolicyContract) -> None:
    """Raise PredictionError for a request that does not fit the policy."""
    if request.state.size != len(contract.state_names):
        raise invalid(
            f'state has {request.state.size} values, the policy takes '
            f'{len(contract.state_names)}: {", ".join(contract.state_names)}',
        )
    if request.images.keys() == contract.cameras.keys():
        return
    if missing := sorted(set(contract.cameras) - set(request.images)):
        raise invalid(f'the policy needs the cameras {", ".join(missing)}; send them too')
    if extra := sorted(set(request.images) - set(contract.cameras)):
        raise invalid(
            f'the policy has no cameras {", ".join(extra)}, only '
            f'{", ".join(contract.cameras) or "none"}; leave them out',
        )
