# SPDX-License-Identifier: Apache-2.0
"""What a session tells of itself, in both clients. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import ArrayLike

from lerobot_serve.client.results import GatewayAgreement, NO_CAGE, PolicyInfo
from lerobot_serve.client.session.inputs import ObservationCheck
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.settings import checked_timeout
from lerobot_serve.contract.records import OpenSessionResponse


class SessionFacts:
    """The base of PolicySession and AsyncPolicySession."""

    def __init__(self, plans: SessionPlans, info: PolicyInfo) -> None:
        self._plans, self.info = plans, info
        terms = plans.state.terms
        self._check = ObservationCheck(terms.state_names, terms.cameras)

    def observe(self, state: ArrayLike, images: Mapping[str, Any] | None = None) -> None:
        """Record a control step without a request, for a policy that takes a history."""
        self._plans.state.observe(self._check(state, images))

    def _limit_s(self, timeout_s: float | None) -> float:
        """Return the timeout of a call. Raises WrongSettings."""
        return self.timeout_s if timeout_s is None else checked_timeout(timeout_s)

    @property
    def client_id(self) -> str:
        """The name of this session in logs and traces; a gateway gives one of its own."""
        given, terms = self._agreement, self._plans.state.terms
        return given.client_id if isinstance(given, GatewayAgreement) else terms.client_id

    @property
    def _agreement(self) -> OpenSessionResponse:
        agreement = self._plans.state.agreement
        assert agreement
        return agreement

    @property
    def _keeps_history(self) -> bool:
        """Whether an observation is sent with later ones, too."""
        return self._agreement.observation_steps > 1

    @property
    def state_names(self) -> tuple[str, ...]:
        return self._plans.state.terms.state_names

    @property
    def action_names(self) -> tuple[str, ...]:
        """The columns of Prediction.actions."""
        return self._plans.state.terms.action_names

    @property
    def camera_names(self) -> tuple[str, ...]:
        return tuple(camera.name for camera in self._plans.state.terms.cameras)

    @property
    def timeout_s(self) -> float:
        """The timeout of a prediction that is given none [s]."""
        return self._plans.state.terms.reply_deadline_s

    @property
    def fingerprint(self) -> str:
        """The policy that was agreed, id@hash; a router joins those of its slots with |."""
        return self._agreement.policy

    @property
    def chunk_steps(self) -> int:
        """Rows of a chunk."""
        return self._agreement.chunk_size

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is worth reading before the first prediction."""
        agreement = self._agreement
        warnings = (NO_CAGE, *agreement.warnings)
        if not self._keeps_history:
            return warnings
        return (
            *warnings,
            f'the policy takes {agreement.observation_steps} observations in each request, '
            f'{agreement.observation_stride_steps} control steps apart: call observe() at each '
            'control step without a prediction',
        )

    @property
    def episode_id(self) -> str:
        return self._plans.state.machine.episode_id

    @property
    def counts(self) -> dict[str, int]:
        """
        Counted since the session was opened: requests sent, sessions opened (1 unless the server
        was away), requests superseded here, and dropped messages by reason.
        """
        state = self._plans.state
        return {
            'requests': state.requests_sent,
            'sessions': state.sessions_opened,
            'superseded': state.superseded,
            **{f'dropped_{reason}': count for reason, count in state.dropped.items()},
        }
