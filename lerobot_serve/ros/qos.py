"""
Every QoS profile of the package, each with its reason.

Reliable with keep-last is the form of "deliver, but never block": a writer whose reader is slow or
gone overwrites its oldest sample instead of waiting. Nothing here is KEEP_ALL, so that one dead
uplink can stall nobody.

Publishers and subscriptions of fixed topics accept the standard `qos_overrides` parameters: pass
OVERRIDABLE.
"""

from __future__ import annotations

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
# every robot of a fleet has one request or answer under way: with fewer places, theirs overwrite
# each other
FLEET_DEPTH = 1024
OVERRIDABLE = QoSOverridingOptions.with_default_policies()


def _profile(reliability: ReliabilityPolicy, depth: int, **more: object) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST, depth=depth, reliability=reliability, **more
    )


def observation_writer(lifespan_s: float, *, for_fleet: bool = False) -> QoSProfile:
    """
    Return the writer of requests, of which none outlives its use.

    Of one robot only the newest counts; a router must not lose one robot's for another's.
    """
    depth = FLEET_DEPTH if for_fleet else 1
    return _profile(ReliabilityPolicy.RELIABLE, depth, lifespan=Duration(seconds=lifespan_s))


# one inbox for all robots, which may all ask while the interpreter is busy; it holds each request
# for microseconds, since the mailbox keeps the newest of each robot
OBSERVATION_READER = _profile(ReliabilityPolicy.RELIABLE, FLEET_DEPTH)

# a batch is answered at once, and a router's reply topic carries the chunks of all its robots; the
# lease lets who listens to liveliness know within seconds that a process is gone
ACTION_CHUNK = _profile(
    ReliabilityPolicy.RELIABLE,
    FLEET_DEPTH,
    liveliness=LivelinessPolicy.AUTOMATIC,
    liveliness_lease_duration=Duration(seconds=LIVELINESS_LEASE_S),
)

# to robots whose session a server does not know, each of which asks again by itself
NO_SESSION = _profile(ReliabilityPolicy.RELIABLE, 32)

# must never slow the live path, so nothing is sent twice; a server in shadow that falls behind
# loses requests
SHADOW_OBSERVATION = _profile(ReliabilityPolicy.BEST_EFFORT, 1)
SHADOW_OBSERVATION_READER = _profile(ReliabilityPolicy.BEST_EFFORT, 8)

# what a server in shadow answers; more than these wait for nobody
SHADOW_REPLIES = _profile(ReliabilityPolicy.BEST_EFFORT, 64)

# a late rqt sees the present: states of edges, servers, routers and canaries
STATE = _profile(ReliabilityPolicy.RELIABLE, 1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
DECISIONS = _profile(ReliabilityPolicy.RELIABLE, 10, durability=DurabilityPolicy.TRANSIENT_LOCAL)

# one for each control step; a recorder may fall behind by a second or so
EXECUTED_ACTION = _profile(ReliabilityPolicy.RELIABLE, 200)

# a stale image or joint state is worse than none
SENSOR = _profile(ReliabilityPolicy.BEST_EFFORT, 1)

# the newest command replaces the one before
COMMAND = _profile(ReliabilityPolicy.RELIABLE, 1)
# what a driver may rely on: three commands in a row that did not come, and no less than a busy
# machine may hold one up
COMMANDS_MISSED, COMMAND_DEADLINE_S = 3, 0.1


def command(step_s: float) -> QoSProfile:
    """
    Return the writer of commands.

    It offers a deadline and a lease, so that a driver may ask for them and see that commands have
    ended; a driver that asks for none gets the same commands as before.
    """
    return _profile(
        ReliabilityPolicy.RELIABLE,
        1,
        deadline=Duration(seconds=max(COMMANDS_MISSED * step_s, COMMAND_DEADLINE_S)),
        liveliness=LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=Duration(seconds=LIVELINESS_LEASE_S),
    )


# what rqt_runtime_monitor and every other reader of /diagnostics expects
DIAGNOSTICS = _profile(ReliabilityPolicy.RELIABLE, 10)

# requests and replies of services and actions: ROS gives ten places, and of a fleet that opens its
# sessions at once the eleventh would overwrite the first
SERVICES = _profile(ReliabilityPolicy.RELIABLE, FLEET_DEPTH)
# what a session agreed on is told once: who begins to record later has it, too; two of each call
SERVICE_EVENTS = _profile(
    ReliabilityPolicy.RELIABLE, FLEET_DEPTH, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
ACTION_SERVICES = {
    f'{name}_service_qos_profile': SERVICES for name in ('goal', 'result', 'cancel')
}

# rare, and each one counts
OUTCOME = _profile(ReliabilityPolicy.RELIABLE, 100)
