# SPDX-License-Identifier: Apache-2.0
"""Create the slots and sessions of a router from its parameters. Pure functions."""

from __future__ import annotations

from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.replicas.health import HealthRules
from lerobot_serve.router.replicas.slot import Slot, VerdictRecords
from lerobot_serve.router.sessions.client_sessions import ClientSessions


def make_slots(
    parameters: RouterParameters, verdicts: VerdictRecords | None = None
) -> dict[str, Slot]:
    """Return the slots by name."""
    of_slot, of_replica = (
        HealthRules(
            failures_to_unhealthy,
            successes_to_recover=parameters.healthy_threshold,
            first_probe_ns=to_ns(parameters.probe_initial_interval_s),
            max_probe_interval_ns=to_ns(parameters.probe_max_interval_s),
        )
        for failures_to_unhealthy in (
            parameters.slot_unhealthy_threshold,
            parameters.replica_unhealthy_threshold,
        )
    )
    return {
        name: Slot(name, servers, of_slot, of_replica, verdicts)
        for name, servers in parameters.slots.items()
    }


def make_sessions(parameters: RouterParameters) -> ClientSessions:
    """Return an empty table of sessions."""
    return ClientSessions(
        grace_ns=to_ns(parameters.session_grace_s), idle_ns=to_ns(parameters.session_idle_s)
    )


def to_ns(seconds: float) -> int:
    return int(seconds * 1e9)
