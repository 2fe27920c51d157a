# SPDX-License-Identifier: Apache-2.0
"""
QoS profiles of all topics and services, each with its reason.

Reliable with keep-last delivers without blocking: a writer whose reader is slow or lost overwrites
its oldest sample instead of waiting. No profile is KEEP_ALL, so a lost uplink never blocks a
writer.

Publishers and subscriptions of fixed topics accept the standard `qos_overrides` parameters: pass
OVERRIDABLE.
"""

from __future__ import annotations

from typing import Any

from rclpy.duration import Duration
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)
from rclpy.qos_overriding_options import QoSOverridingOptions

LIVELINESS_LEASE_S = 2.0
# each robot of a fleet has one request or reply in flight; a smaller depth overwrites some
FLEET_DEPTH = 1024
OVERRIDABLE = QoSOverridingOptions.with_default_policies()


def _profile(reliability: ReliabilityPolicy, depth: int, **more: Any) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth, reliability=reliability, **more
    )


def observation_writer(lifespan_s: float, *, for_fleet: bool = False) -> QoSProfile:
    """
    Return the profile of a request writer; a request expires after `lifespan_s`.

    One robot needs the newest request only; a router must not overwrite one robot's request with
    another's.
    """
    depth = FLEET_DEPTH if for_fleet else 1
    return _profile(ReliabilityPolicy.RELIABLE, depth, lifespan=Duration(seconds=lifespan_s))


# one inbox for all robots, which may all send while the interpreter is busy; a request stays in it
# for microseconds, since the request queue keeps the newest of each robot
OBSERVATION_READER = _profile(ReliabilityPolicy.RELIABLE, FLEET_DEPTH)

# a batch sends all its replies at once, and a router's reply topic carries the chunks of all its
# robots; the lease reports a lost process to liveliness listeners within seconds
ACTION_CHUNK = _profile(
    ReliabilityPolicy.RELIABLE,
    FLEET_DEPTH,
    liveliness=LivelinessPolicy.AUTOMATIC,
    liveliness_lease_duration=Duration(seconds=LIVELINESS_LEASE_S),
)

# replies to robots with an unknown session; each robot then opens a new one
NO_SESSION = _profile(ReliabilityPolicy.RELIABLE, 32)

# must never slow the live path: no retransmission; a slow shadow server loses requests
SHADOW_OBSERVATION = _profile(ReliabilityPolicy.BEST_EFFORT, 1)
SHADOW_OBSERVATION_READER = _profile(ReliabilityPolicy.BEST_EFFORT, 8)

# replies of a shadow server; older ones are overwritten
SHADOW_REPLIES = _profile(ReliabilityPolicy.BEST_EFFORT, 64)

# a late subscriber gets the current state of edges, servers, routers and canaries
STATE = _profile(ReliabilityPolicy.RELIABLE, 1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
DECISIONS = _profile(ReliabilityPolicy.RELIABLE, 10, durability=DurabilityPolicy.TRANSIENT_LOCAL)

# a late subscriber gets the newest thousand: at 20 episodes an hour those of two days; a message
# has about 0.5 kB, at most 10 kB. Older ones are found in the folders of bags
RECORDED_EPISODES = _profile(
    ReliabilityPolicy.RELIABLE, 1000, durability=DurabilityPolicy.TRANSIENT_LOCAL
)

# a late subscriber gets the last hundred versions of a learner; a message has some kB, older ones
# are in the store
VERSIONS = _profile(ReliabilityPolicy.RELIABLE, 100, durability=DurabilityPolicy.TRANSIENT_LOCAL)

# one message per control step; a recorder may fall behind by about a second
EXECUTED_ACTION = _profile(ReliabilityPolicy.RELIABLE, 200)

# a stale image or joint state is worse than a lost one
SENSOR = _profile(ReliabilityPolicy.BEST_EFFORT, 1)

# the newest command replaces the previous one
COMMAND = _profile(ReliabilityPolicy.RELIABLE, 1)
# deadline that a driver may request: three missed commands in a row, and not below the delay of a
# busy machine
COMMANDS_MISSED, COMMAND_DEADLINE_S = 3, 0.1


def command(step_s: float) -> QoSProfile:
    """
    Return the profile of a command writer.

    It offers a deadline and a lease, so that a driver can request them and detect that commands
    have ended; a driver that requests none receives the same commands.
    """
    return _profile(
        ReliabilityPolicy.RELIABLE,
        1,
        deadline=Duration(seconds=max(COMMANDS_MISSED * step_s, COMMAND_DEADLINE_S)),
        liveliness=LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=Duration(seconds=LIVELINESS_LEASE_S),
    )


# matches rqt_runtime_monitor and every other reader of /diagnostics
DIAGNOSTICS = _profile(ReliabilityPolicy.RELIABLE, 10)

# requests and replies of services and actions: the ROS default depth is 10, and in a fleet that
# opens its sessions at once the eleventh request would overwrite the first
SERVICES = _profile(ReliabilityPolicy.RELIABLE, FLEET_DEPTH)
# a session is agreed on once: a recorder that starts later receives it too; two events per call
SERVICE_EVENTS = _profile(
    ReliabilityPolicy.RELIABLE, FLEET_DEPTH, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
ACTION_SERVICES = {
    f'{name}_service_qos_profile': SERVICES for name in ('goal', 'result', 'cancel')
}

# rare; none may be lost
OUTCOME = _profile(ReliabilityPolicy.RELIABLE, 100)
