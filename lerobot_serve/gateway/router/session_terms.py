# SPDX-License-Identifier: Apache-2.0
"""The session request of a caller that states its own terms. Pure."""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRequest
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.router.policy_contract import policy_id
from lerobot_serve.gateway.upstream import SessionTerms


def request_on_terms(request: SessionRequest, terms: SessionTerms) -> SessionRequest:
    """
    Return the request with the terms of its caller; the router judges them. Raises PredictionError
    for another policy than the gateway requires.
    """
    return replace(
        request,
        state_names=terms.state_names,
        action_names=terms.action_names,
        cameras=terms.cameras,
        fps=terms.fps or request.fps,
        policy=_required_policy(request.policy, terms.policy),
        task=terms.task,
        tags=terms.tags,
    )


def _required_policy(ours: str, theirs: str) -> str:
    """Return the policy that both the gateway and its caller accept; empty for any."""
    if not (ours and theirs):
        return ours or theirs
    if theirs in (ours, policy_id(ours)):
        return ours
    if ours == policy_id(theirs):
        return theirs
    raise PredictionError(
        Status.INVALID,
        f'policy mismatch: requested {theirs[:256]!r}, the gateway requires {ours!r}; request '
        'that one, or leave policy empty',
        refusal=Refusal.WRONG_POLICY,
    )
