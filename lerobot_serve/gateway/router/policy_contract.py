# SPDX-License-Identifier: Apache-2.0
"""What the router says about its policy, and what callers demand of theirs. Pure."""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.contract.records import GetStatusResponse, OpenSessionResponse
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.upstream import PolicyContract

# between the policies of a router's slots, and between id and hash of a fingerprint
POLICY_SEPARATOR, HASH_SEPARATOR = '|', '@'


def contract_of_status(reply: GetStatusResponse) -> PolicyContract:
    """Return the contract of GetStatus."""
    status = reply.status
    contract = _contract(reply, status.policy, status.policy_type)
    return replace(
        contract,
        default_task=reply.default_task,
        task_pinned=reply.task_pinned,
        text=status.text,
    )


def contract_of_session(reply: OpenSessionResponse) -> PolicyContract:
    """
    Return the contract of an open session. Raises PredictionError for a policy that needs past
    observations.
    """
    if reply.observation_steps > 1:
        raise PredictionError(
            Status.INVALID,
            f'the policy {reply.policy} needs {reply.observation_steps} observations with each '
            'request, and callers of a gateway send one; use an edge_controller, or a policy '
            'without a history',
        )
    contract = _contract(reply, reply.policy, reply.policy_type)
    return replace(contract, warnings=reply.warnings)


def _contract(
    reply: OpenSessionResponse | GetStatusResponse, fingerprint: str, policy_type: str
) -> PolicyContract:
    return PolicyContract(
        policy=policy_id(fingerprint),
        fingerprint=fingerprint,
        state_names=reply.state_names,
        action_names=reply.action_names,
        cameras={c.name: (c.height, c.width, c.channels) for c in reply.cameras},
        chunk_steps=reply.chunk_size,
        control_hz=reply.trained_fps,
        policy_type=policy_type,
        observation_steps=reply.observation_steps,
    )


def policy_id(fingerprint: str) -> str:
    """Return the ids in a fingerprint, without their hashes."""
    parts = fingerprint.split(POLICY_SEPARATOR)
    return POLICY_SEPARATOR.join(part.partition(HASH_SEPARATOR)[0] for part in parts)


def required_policy(ours: str, theirs: str) -> str:
    """
    Return the policy that both the gateway and its caller accept; empty for any. Raises
    PredictionError for another one than the gateway requires.
    """
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
