# SPDX-License-Identifier: Apache-2.0
"""
The messages of the contract as plain objects: a class for each .msg file and for each part of a
.srv or .action file, with its fields. `make docs` writes this file from the interface files.

`contract.codec` encodes and decodes them. Immutable; any thread.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Annotated

from msgspec import Struct
import numpy as np

from lerobot_serve.arrays import Float32Array, Int64Array
from lerobot_serve.contract.types import (
    Bool,
    Bytes,
    Constants,
    Float32,
    Float64,
    Int32,
    Int64,
    KeyValue,
    no_values,
    Time,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
)


class ActionArray(Struct, frozen=True, eq=False):
    """A table of actions: one row a control step, one column an action name."""

    rows: UInt32 = 0
    columns: UInt32 = 0
    data: Float32Array = no_values(np.float32)


class DropCount(Struct, frozen=True):
    """The number of drops with one reason."""

    reason: Annotated[str, 64] = ''
    count: UInt64 = 0


class VersionFile(Struct, frozen=True):
    """One file of a version."""

    path: Annotated[str, 512] = ''
    size_bytes: UInt64 = 0
    sha256: Annotated[str, 64] = ''


class CameraSpec(Struct, frozen=True):
    """A camera as a robot has it or as a policy wants it."""

    name: Annotated[str, 128] = ''
    height: UInt32 = 0
    width: UInt32 = 0
    channels: UInt8 = 3


class Extension(Struct, frozen=True):
    """Optional content that a newer version adds."""

    key: Annotated[str, 64] = ''
    value: Bytes = b''


class ReplicaState(Struct, frozen=True):
    """One policy server of a slot."""

    class State(Constants):
        UNKNOWN = 0
        READY = 1
        UNHEALTHY = 2
        UNAVAILABLE = 3
        POLICY_MISMATCH = 4

    server: Annotated[str, 256] = ''
    slot: Annotated[str, 16] = ''
    state: State = State(0)
    text: Annotated[str, 1024] = ''
    policy: Annotated[str, 256] = ''
    sessions: UInt32 = 0
    load: Float32 = 0.0
    latency_ms_p50: Float32 = 0.0
    latency_ms_p95: Float32 = 0.0
    requests: UInt64 = 0
    chunks: UInt64 = 0
    requests_failed: UInt64 = 0
    hedges: UInt64 = 0
    probes: UInt64 = 0


class CameraImage(Struct, frozen=True):
    """One frame of one camera, as part of an observation."""

    class Codec(Constants):
        JPEG = 1
        RAW = 2

    name: Annotated[str, 128] = ''
    height: UInt32 = 0
    width: UInt32 = 0
    steps_back: UInt16 = 0
    codec: Codec = Codec(0)
    channels: UInt8 = 0
    channel_bytes: UInt8 = 0
    data: Bytes = b''


class EpisodeOutcome(Struct, frozen=True):
    """How one episode ended, as whoever judges it (a simulator, a sensor, a person) reports it."""

    class Outcome(Constants):
        SUCCESS = 1
        FAILURE = 2
        ABORTED = 3

    stamp: Time = Time()
    client_id: Annotated[str, 128] = ''
    episode_id: Annotated[str, 128] = ''
    outcome: Outcome = Outcome(0)
    duration_s: Float32 = 0.0
    score: Float32 = 0.0
    text: Annotated[str, 1024] = ''


class RecordedEpisode(Struct, frozen=True):
    """An episode whose bag is whole on the disk of its recorder."""

    class Outcome(Constants):
        NO_OUTCOME = 0
        SUCCESS = 1
        FAILURE = 2
        ABORTED = 3

    stamp: Time = Time()
    client_id: Annotated[str, 128] = ''
    episode_id: Annotated[str, 128] = ''
    outcome: Outcome = Outcome(0)
    control_steps: UInt32 = 0
    control_steps_person: UInt32 = 0
    policies: Annotated[tuple[Annotated[str, 256], ...], 16] = ()
    host: Annotated[str, 256] = ''
    path: Annotated[str, 4096] = ''
    size_bytes: UInt64 = 0
    sha256: Annotated[str, 64] = ''


class GuardState(Struct, frozen=True):
    """One guard of a canary: what it measures in this step, and its limit now."""

    name: Annotated[str, 32] = ''
    unit: Annotated[str, 16] = ''
    value: Float64 = 0.0
    limit: Float64 = 0.0
    samples: UInt64 = 0
    minimum_samples: UInt64 = 0
    alarm: Float64 = 0.0


class RoutingDecision(Struct, frozen=True):
    """The placement of an episode by a router."""

    stamp: Time = Time()
    client_id: Annotated[str, 128] = ''
    episode_id: Annotated[str, 128] = ''
    routing_key: Annotated[str, 160] = ''
    bucket: UInt8 = 0
    split_percent: UInt8 = 0
    slot: Annotated[str, 16] = ''
    policy: Annotated[str, 256] = ''
    server: Annotated[str, 256] = ''
    missing_episode_id: Bool = False
    sticky: Bool = False
    moved: Bool = False
    reason: Annotated[str, 1024] = ''
    split_version: UInt64 = 0


class ShadowDivergence(Struct, frozen=True, eq=False):
    """How far a shadow policy's chunk was from what the robot executed, for one request."""

    stamp: Time = Time()
    client_id: Annotated[str, 128] = ''
    episode_id: Annotated[str, 128] = ''
    seq: UInt64 = 0
    live_policy: Annotated[str, 256] = ''
    shadow_policy: Annotated[str, 256] = ''
    rows: UInt32 = 0
    divergence: Float32 = 0.0
    divergence_in_spreads: Float32 = 0.0
    action_names: tuple[Annotated[str, 128], ...] = ()
    divergence_per_action: Float32Array = no_values(np.float32)
    limits_known: Bool = False
    cage_would_trip: Bool = False
    latency_ms: Float32 = 0.0


class RequestHeader(Struct, frozen=True):
    """What a router needs of a request or of its answer, at fixed places."""

    class MsgType(Constants):
        OBSERVATION = 1
        CHUNK = 2

    class Flag(IntFlag):
        NONE = 0
        EPISODE_START = 1
        POLICY_CHANGED = 2
        PREFIX_IGNORED = 4
        STATE_LOST = 8

    seq: UInt64 = 0
    client_mono_ns: Int64 = 0
    session_epoch: UInt32 = 0
    episode: UInt32 = 0
    schema_version: UInt16 = 0
    msg_type: MsgType = MsgType(0)
    flags: UInt8 = 0


class EdgeState(Struct, frozen=True):
    """State of an edge controller."""

    class State(Constants):
        CONNECTING = 1
        STREAMING = 2
        DEGRADED = 3
        STALLED = 4
        RECONNECTING = 5
        DEAD = 6

    class Rung(Constants):
        POLICY = 0
        RAMP = 1
        HOLD = 2
        REPEAT_LAST = 3
        ZERO = 4
        SAFE_POSE = 5
        STOP_SERVICE = 6
        NO_COMMAND = 7
        INITIAL_POSE = 8
        PERSON = 9

    class Intervention(Constants):
        NONE = 0
        COMMANDING = 1
        LOST = 2

    stamp: Time = Time()
    client_id: Annotated[str, 128] = ''
    server: Annotated[str, 256] = ''
    episode_id: Annotated[str, 128] = ''
    task: Annotated[str, 4096] = ''
    slot: Annotated[str, 16] = ''
    policy: Annotated[str, 256] = ''
    state: State = State(0)
    rung: Rung = Rung(0)
    paused: Bool = False
    intervention: Intervention = Intervention(0)
    reason: Annotated[str, 1024] = ''
    queue_remaining_s: Float32 = 0.0
    action_age_s: Float32 = 0.0
    round_trip_ms: Float32 = 0.0
    network_ms: Float32 = 0.0
    control_steps: UInt64 = 0
    control_steps_missed: UInt64 = 0
    actions_executed: UInt64 = 0
    requests_sent: UInt64 = 0
    chunks_accepted: UInt64 = 0
    stalls: UInt64 = 0
    cage_trips: UInt64 = 0
    dropped: tuple[DropCount, ...] = ()


class LearnerState(Struct, frozen=True):
    """State of a learner."""

    class State(Constants):
        WAITING = 1
        CONVERTING = 2
        TRAINING = 3
        PUBLISHING = 4
        PAUSED = 5

    stamp: Time = Time()
    learner: Annotated[str, 256] = ''
    state: State = State(0)
    text: Annotated[str, 1024] = ''
    round: UInt32 = 0
    parent: Annotated[str, 256] = ''
    latest: Annotated[str, 256] = ''
    episodes: UInt32 = 0
    episodes_new: UInt32 = 0
    episodes_wanted: UInt32 = 0
    progress: Float32 = 0.0
    loss: Float32 = 0.0
    remaining_s: Float32 = 0.0
    dropped: tuple[DropCount, ...] = ()


class ServerStatus(Struct, frozen=True):
    """State of a policy server."""

    class State(Constants):
        UNCONFIGURED = 1
        INACTIVE = 2
        ACTIVE = 3
        DRAINING = 4
        FAILED = 5

    class StateClass(Constants):
        CHUNK_STATELESS = 1
        NEEDS_HISTORY = 2
        RECURRENT = 3
        EXCLUSIVE = 4

    class Swap(Constants):
        NONE = 0
        LOADING = 1
        DONE = 2
        FAILED = 3

    stamp: Time = Time()
    server: Annotated[str, 256] = ''
    slot: Annotated[str, 16] = ''
    policy: Annotated[str, 256] = ''
    policy_type: Annotated[str, 64] = ''
    device: Annotated[str, 32] = ''
    state: State = State(0)
    state_class: StateClass = StateClass(0)
    warmed_up: Bool = False
    text: Annotated[str, 1024] = ''
    active_sessions: UInt32 = 0
    max_sessions: UInt32 = 0
    load: Float32 = 0.0
    inference_ms_p50: Float32 = 0.0
    inference_ms_p99: Float32 = 0.0
    queue_wait_ms_p99: Float32 = 0.0
    requests: UInt64 = 0
    chunks: UInt64 = 0
    superseded: UInt64 = 0
    dropped: tuple[DropCount, ...] = ()
    memory_mb: Float32 = 0.0
    swap: Swap = Swap(0)
    swap_text: Annotated[str, 1024] = ''


class ShadowSummary(Struct, frozen=True):
    """Statistics of a policy in shadow, which receives live observations and drives no robot."""

    stamp: Time = Time()
    shadow_policy: Annotated[str, 256] = ''
    live_policy: Annotated[str, 256] = ''
    hours_in_shadow: Float64 = 0.0
    episodes: UInt64 = 0
    samples: UInt64 = 0
    divergence_mean: Float32 = 0.0
    divergence_in_spreads_mean: Float32 = 0.0
    cage_trips: UInt64 = 0
    latency_ms_p50: Float32 = 0.0
    latency_ms_p95: Float32 = 0.0
    unmet_requirements: Annotated[str, 1024] = ''
    dropped: tuple[DropCount, ...] = ()


class PolicyVersion(Struct, frozen=True):
    """A version of a policy that is whole in a store."""

    stamp: Time = Time()
    id: Annotated[str, 256] = ''
    policy_kind: Annotated[str, 64] = ''
    parent: Annotated[str, 256] = ''
    dataset_sha256: Annotated[str, 64] = ''
    files: Annotated[tuple[VersionFile, ...], 1000] = ()
    sources: Annotated[tuple[Annotated[str, 512], ...], 8] = ()
    note: Annotated[str, 1000] = ''


class SlotState(Struct, frozen=True):
    """One slot of a router: its replicas and the outcomes of its episodes."""

    class State(Constants):
        HEALTHY = 1
        DRAINED = 2
        PROBING = 3
        UNAVAILABLE = 4
        BARRED = 5
        UNQUALIFIED = 6

    slot: Annotated[str, 16] = ''
    policy: Annotated[str, 256] = ''
    state: State = State(0)
    text: Annotated[str, 1024] = ''
    share_percent: UInt8 = 0
    consecutive_failures: UInt32 = 0
    episodes: UInt64 = 0
    requests: UInt64 = 0
    chunks: UInt64 = 0
    requests_failed: UInt64 = 0
    episodes_moved_away: UInt64 = 0
    episodes_succeeded: UInt64 = 0
    episodes_failed: UInt64 = 0
    episodes_aborted: UInt64 = 0
    episodes_unreported: UInt64 = 0
    replicas: tuple[ReplicaState, ...] = ()


class CanaryState(Struct, frozen=True):
    """State of the canary: the rollout of a candidate policy."""

    class State(Constants):
        OFF = 0
        WAITING = 1
        RUNNING = 2
        UNDECIDED = 3
        PAUSED = 4
        PROMOTED = 5
        ROLLED_BACK = 6

    stamp: Time = Time()
    state: State = State(0)
    slot: Annotated[str, 16] = ''
    candidate_policy: Annotated[str, 256] = ''
    champion_policy: Annotated[str, 256] = ''
    step: UInt32 = 0
    step_count: UInt32 = 0
    share_percent: UInt8 = 0
    text: Annotated[str, 1024] = ''
    estimated_remaining_episodes: Int32 = 0
    candidate_successes: UInt64 = 0
    candidate_failures: UInt64 = 0
    champion_successes: UInt64 = 0
    champion_failures: UInt64 = 0
    log10_evidence_not_worse: Float64 = 0.0
    log10_evidence_worse: Float64 = 0.0
    step_elapsed_s: Float64 = 0.0
    planned_policy: Annotated[str, 256] = ''
    guards: tuple[GuardState, ...] = ()
    is_watched: Bool = False


class ActionChunk(Struct, frozen=True):
    """The answer to one Observation: a chunk of actions, or the reason why there is none."""

    class Status(Constants):
        OK = 0
        BAD_OBSERVATION = 1
        NO_SESSION = 2
        POLICY_ERROR = 3
        NOT_FINITE = 4
        TOO_LATE = 5
        DRAINING = 6
        NO_SLOT = 7
        QUOTA = 8

    header: RequestHeader = RequestHeader()
    client_id: Annotated[str, 128] = ''
    episode_id: Annotated[str, 128] = ''
    seed: UInt64 = 0
    queue_wait_ms: Float32 = 0.0
    processing_ms: Float32 = 0.0
    inference_ms: Float32 = 0.0
    server_load: Float32 = 0.0
    superseded: UInt32 = 0
    status: Status = Status(0)
    status_text: Annotated[str, 1024] = ''
    slot: Annotated[str, 16] = ''
    policy: Annotated[str, 256] = ''
    chunk_model: ActionArray = ActionArray()
    chunk_robot: ActionArray = ActionArray()
    extensions: tuple[Extension, ...] = ()


class Observation(Struct, frozen=True, eq=False):
    """One request for a chunk of actions: what the robot senses and what it has left to play."""

    header: RequestHeader = RequestHeader()
    client_id: Annotated[str, 128] = ''
    episode_id: Annotated[str, 128] = ''
    inference_delay_steps: UInt32 = 0
    queue_remaining_s: Float32 = 0.0
    observation_steps: UInt32 = 0
    task: Annotated[str, 4096] = ''
    prefix_policy: Annotated[str, 256] = ''
    prefix_model: ActionArray = ActionArray()
    prefix_robot: ActionArray = ActionArray()
    state: Float32Array = no_values(np.float32)
    images: tuple[CameraImage, ...] = ()
    extensions: tuple[Extension, ...] = ()


class ExecutedAction(Struct, frozen=True, eq=False):
    """One command to the robot and its source."""

    class CageResult(Constants):
        PASS = 0
        CLAMPED = 1
        HELD = 2
        STOPPED = 3

    class Source(Constants):
        POLICY = 0
        PERSON = 1
        LADDER = 2
        INTERLOCK = 3
        TEARDOWN = 4
        OPERATOR = 5
        NONE = 6

    stamp: Time = Time()
    control_step: UInt64 = 0
    seq: UInt64 = 0
    session_epoch: UInt32 = 0
    episode: UInt32 = 0
    chunk_row: UInt32 = 0
    age_s: Float32 = 0.0
    cage_result: CageResult = CageResult(0)
    rung: EdgeState.Rung = EdgeState.Rung(0)
    source: Source = Source(0)
    client_id: Annotated[str, 128] = ''
    episode_id: Annotated[str, 128] = ''
    slot: Annotated[str, 16] = ''
    policy: Annotated[str, 256] = ''
    reason: Annotated[str, 256] = ''
    raw: Float32Array = no_values(np.float32)
    commanded: Float32Array = no_values(np.float32)
    policy_action: Float32Array = no_values(np.float32)
    input_ids: Int64Array = no_values(np.int64)


class RouterState(Struct, frozen=True):
    """State of a router."""

    stamp: Time = Time()
    server: Annotated[str, 256] = ''
    health: Annotated[str, 32] = ''
    text: Annotated[str, 1024] = ''
    split_percent: UInt8 = 0
    sessions: UInt32 = 0
    slots: tuple[SlotState, ...] = ()
    hedges: UInt64 = 0
    hedges_won: UInt64 = 0
    late_replies: UInt64 = 0
    dropped: tuple[DropCount, ...] = ()


class CloseSessionRequest(Struct, frozen=True):
    """Request of CloseSession."""

    client_id: Annotated[str, 128] = ''
    session_epoch: UInt32 = 0


class CloseSessionResponse(Struct, frozen=True):
    """Response of CloseSession."""

    closed: Bool = False
    text: Annotated[str, 1024] = ''


class ControlSlotRequest(Struct, frozen=True):
    """Request of ControlSlot."""

    class Command(Constants):
        DRAIN = 1
        RESTORE = 2
        PROBE = 3
        CANARY_PAUSE = 4
        CANARY_RESUME = 5
        CANARY_PROMOTE = 6
        CANARY_ROLLBACK = 7
        LIFT_VERDICT = 8
        SET_SPLIT = 9
        CANARY_START = 10
        CANARY_STOP = 11
        CANARY_FINISH = 12
        NOTE = 13
        SKIP_SHADOW = 14

    command: Command = Command(0)
    slot: Annotated[str, 16] = ''
    move_running_episodes: Bool = False
    reason: Annotated[str, 1024] = ''
    split_percent: UInt8 = 0
    plan: tuple[Annotated[str, 64], ...] = ()


class ControlSlotResponse(Struct, frozen=True):
    """Response of ControlSlot."""

    success: Bool = False
    text: Annotated[str, 1024] = ''


class GetStatusRequest(Struct, frozen=True):
    """Request of GetStatus."""


class GetStatusResponse(Struct, frozen=True):
    """Response of GetStatus."""

    status: ServerStatus = ServerStatus()
    schema_version_min: UInt16 = 0
    schema_version_max: UInt16 = 0
    state_names: tuple[Annotated[str, 128], ...] = ()
    action_names: tuple[Annotated[str, 128], ...] = ()
    cameras: tuple[CameraSpec, ...] = ()
    chunk_size: UInt32 = 0
    trained_fps: Float32 = 0.0
    supports_rtc: Bool = False
    observation_steps: UInt32 = 0
    observation_stride_steps: UInt32 = 0
    default_task: Annotated[str, 4096] = ''
    task_pinned: Bool = False


class OpenSessionRequest(Struct, frozen=True):
    """Request of OpenSession."""

    schema_version: UInt16 = 0
    client_id: Annotated[str, 128] = ''
    instance: UInt64 = 0
    session_epoch: UInt32 = 0
    reply_topic: Annotated[str, 256] = ''
    robot_type: Annotated[str, 128] = ''
    policy: Annotated[str, 256] = ''
    fps: Float32 = 0.0
    state_names: tuple[Annotated[str, 128], ...] = ()
    action_names: tuple[Annotated[str, 128], ...] = ()
    cameras: tuple[CameraSpec, ...] = ()
    task: Annotated[str, 4096] = ''
    wants_rtc: Bool = False
    rtc_execution_horizon: UInt32 = 0
    codec: CameraImage.Codec = CameraImage.Codec(0)
    reply_deadline_s: Float32 = 0.0
    tags: tuple[KeyValue, ...] = ()
    extensions: tuple[Extension, ...] = ()


class OpenSessionResponse(Struct, frozen=True):
    """Response of OpenSession."""

    class Code(Constants):
        OK = 0
        SCHEMA_TOO_NEW = 1
        SCHEMA_TOO_OLD = 2
        BAD_NAME = 3
        ACTION_NAMES = 4
        STATE_NAMES = 5
        CAMERAS = 6
        FPS = 7
        TASK_PINNED = 8
        WRONG_POLICY = 9
        CAPACITY = 10
        NAME_IN_USE = 11
        NOT_READY = 12
        DRAINING = 13
        CODEC = 14
        EXCLUSIVE_IN_USE = 15
        UNREACHABLE = 16
        BAD_REQUEST = 17

    accepted: Bool = False
    code: Code = Code(0)
    reason: Annotated[str, 2048] = ''
    warnings: tuple[Annotated[str, 1024], ...] = ()
    schema_version: UInt16 = 0
    session_epoch: UInt32 = 0
    session_id: Annotated[str, 128] = ''
    observation_topic: Annotated[str, 256] = ''
    policy: Annotated[str, 256] = ''
    policy_type: Annotated[str, 64] = ''
    state_class: ServerStatus.StateClass = ServerStatus.StateClass(0)
    warmed_up: Bool = False
    state_names: tuple[Annotated[str, 128], ...] = ()
    action_names: tuple[Annotated[str, 128], ...] = ()
    cameras: tuple[CameraSpec, ...] = ()
    chunk_size: UInt32 = 0
    trained_fps: Float32 = 0.0
    supports_rtc: Bool = False
    observation_steps: UInt32 = 0
    observation_stride_steps: UInt32 = 0
    codec: CameraImage.Codec = CameraImage.Codec(0)
    load: Float32 = 0.0
    predicted_delay_ms: Float32 = 0.0
    active_sessions: UInt32 = 0
    max_sessions: UInt32 = 0
    extensions: tuple[Extension, ...] = ()


class ReportOutcomeRequest(Struct, frozen=True):
    """Request of ReportOutcome."""

    outcome: EpisodeOutcome = EpisodeOutcome()


class ReportOutcomeResponse(Struct, frozen=True):
    """Response of ReportOutcome."""

    accepted: Bool = False
    text: Annotated[str, 1024] = ''


class ResetEpisodeRequest(Struct, frozen=True):
    """Request of ResetEpisode."""

    client_id: Annotated[str, 128] = ''
    session_epoch: UInt32 = 0
    episode: UInt32 = 0
    episode_id: Annotated[str, 128] = ''


class ResetEpisodeResponse(Struct, frozen=True):
    """Response of ResetEpisode."""

    acknowledged: Bool = False
    text: Annotated[str, 1024] = ''


class SwapPolicyRequest(Struct, frozen=True):
    """Request of SwapPolicy."""

    policy_path: Annotated[str, 4096] = ''


class SwapPolicyResponse(Struct, frozen=True):
    """Response of SwapPolicy."""

    accepted: Bool = False
    text: Annotated[str, 1024] = ''


class PredictChunkGoal(Struct, frozen=True):
    """Goal of PredictChunk."""

    observation: Observation = Observation()


class PredictChunkResult(Struct, frozen=True):
    """Result of PredictChunk."""

    chunk: ActionChunk = ActionChunk()


class PredictChunkFeedback(Struct, frozen=True):
    """Feedback of PredictChunk."""

    queue_position: UInt32 = 0


class RunEpisodeGoal(Struct, frozen=True):
    """Goal of RunEpisode."""

    task: Annotated[str, 4096] = ''
    episode_id: Annotated[str, 128] = ''
    max_duration_s: Float32 = 0.0


class RunEpisodeResult(Struct, frozen=True):
    """Result of RunEpisode."""

    class Outcome(Constants):
        TIMEOUT = 1
        CANCELLED = 2
        DEAD = 3
        STOPPED = 4
        SUCCESS = 5
        FAILURE = 6
        REFUSED = 7

    outcome: Outcome = Outcome(0)
    text: Annotated[str, 1024] = ''
    episode_id: Annotated[str, 128] = ''
    slot: Annotated[str, 16] = ''
    policy: Annotated[str, 256] = ''
    duration_s: Float32 = 0.0
    actions_executed: UInt64 = 0
    stalls: UInt64 = 0
    cage_trips: UInt64 = 0
    max_action_age_s: Float32 = 0.0


class RunEpisodeFeedback(Struct, frozen=True):
    """Feedback of RunEpisode."""

    state: EdgeState.State = EdgeState.State(0)
    rung: EdgeState.Rung = EdgeState.Rung(0)
    elapsed_s: Float32 = 0.0
    queue_remaining_s: Float32 = 0.0
    action_age_s: Float32 = 0.0
    actions_executed: UInt64 = 0
