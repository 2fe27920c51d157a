# SPDX-License-Identifier: Apache-2.0

from enum import IntEnum

from rclpy.duration import Duration

class HistoryPolicy(IntEnum):
    SYSTEM_DEFAULT = 0
    KEEP_LAST = 1
    KEEP_ALL = 2
    UNKNOWN = 3

class ReliabilityPolicy(IntEnum):
    SYSTEM_DEFAULT = 0
    RELIABLE = 1
    BEST_EFFORT = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4

class DurabilityPolicy(IntEnum):
    SYSTEM_DEFAULT = 0
    TRANSIENT_LOCAL = 1
    VOLATILE = 2
    UNKNOWN = 3
    BEST_AVAILABLE = 4

class LivelinessPolicy(IntEnum):
    SYSTEM_DEFAULT = 0
    AUTOMATIC = 1
    MANUAL_BY_TOPIC = 3
    UNKNOWN = 4
    BEST_AVAILABLE = 5

class QoSProfile:
    history: HistoryPolicy
    depth: int
    reliability: ReliabilityPolicy
    durability: DurabilityPolicy
    lifespan: Duration
    deadline: Duration
    liveliness: LivelinessPolicy
    liveliness_lease_duration: Duration
    def __init__(
        self,
        *,
        history: HistoryPolicy = ...,
        depth: int = ...,
        reliability: ReliabilityPolicy = ...,
        durability: DurabilityPolicy = ...,
        lifespan: Duration = ...,
        deadline: Duration = ...,
        liveliness: LivelinessPolicy = ...,
        liveliness_lease_duration: Duration = ...,
    ) -> None: ...

class QoSCompatibility(IntEnum):
    OK = 0
    WARNING = 1
    ERROR = 2

def qos_check_compatible(
    publisher_qos: QoSProfile, subscription_qos: QoSProfile
) -> tuple[QoSCompatibility, str]: ...
