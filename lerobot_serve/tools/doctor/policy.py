# SPDX-License-Identifier: Apache-2.0
"""
Loads a policy as a policy_server does, classifies and measures it. The caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
import time
from typing import Any

import numpy as np

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.policies.base import PolicyDescription, PolicyError
from lerobot_serve.policies.error_text import one_line
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from lerobot_serve.policies.lerobot.checkpoint.features import (
    read_dataset_info,
    unspecified_options,
)
from lerobot_serve.policies.runtime.memory import host_memory
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.inference.worker import InferenceFailed, InferenceWorker
from lerobot_serve.server.observability.server_statistics import ServerStatistics
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.doctor.finding import failure, Finding, ok, warning
from lerobot_serve.tools.doctor.machine import PolicySpeed

RUNS_LIMIT, RUNS_NEEDED, LIMIT_S = 200, 5, 5.0
MIB = 1 << 20
LOADS = 'loads'
CLASSES = {
    StateClass.CHUNK_STATELESS: 'stateless; all sessions share it',
    StateClass.NEEDS_HISTORY: 'uses past observations, which each request carries',
    StateClass.RECURRENT: 'has a hidden state for each session; robots stay with their server',
    StateClass.EXCLUSIVE: 'unknown state; one session at a time',
}
PAGE = 'docs/policy_server.md lists what each kind of policy needs'


@dataclass(frozen=True, slots=True)
class PolicyExamination:
    """Findings on a policy; `served` and `forward_ms` are set when it is usable."""

    findings: tuple[Finding, ...]
    served: PolicyDescription | None = None
    forward_ms: tuple[float, ...] = ()

    def pace(self, robot: RobotDescription | None) -> PolicySpeed | None:
        """Return its speed at the rate of the robot, or at its own rate."""
        if not self.served or not self.forward_ms:
            return None
        p50_ms, p99_ms = np.percentile(self.forward_ms, [50, 99])
        fps = robot.fps if robot else self.served.trained_fps
        return PolicySpeed(
            float(p50_ms), float(p99_ms), len(self.forward_ms), fps, self.served.chunk_size
        )


def with_robot_names(
    robot: RobotDescription | None, parameters: ServerParameters
) -> tuple[ServerParameters, tuple[str, ...]]:
    """
    Return the parameters, with names and rate from the robot file if the LeRobot files lack them,
    and the names of the parameters so filled in: these are not compared with the robot file.
    """
    if robot is None or parameters.policy_kind != 'lerobot':
        return parameters, ()
    own: dict[str, Any] = {
        'state_names': robot.state_names,
        'action_names': robot.action_names,
        'trained_fps': robot.fps,
    }
    try:
        folder = read_checkpoint(parameters.policy_path)
        missing = unspecified_options(
            folder, policy_loading.load_options(parameters, parameters.policy_path)
        )
    except PolicyError:
        # reported when the policy is loaded
        return parameters, ()
    return replace(parameters, **{name: own[name] for name in missing}), missing


def training_findings(parameters: ServerParameters) -> list[Finding]:
    """Return a finding about the training file that provides names and rate, if any."""
    if parameters.policy_kind != 'lerobot':
        return []
    training = read_dataset_info(Path(parameters.policy_path))
    if not training.file:
        return []
    return [ok('training', f'{training.file} provides the missing names and rate')]


def examine_policy(
    parameters: ServerParameters,
    default_path: str = '',
    *,
    runs: int = RUNS_LIMIT,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.perf_counter,
) -> PolicyExamination:
    """Load the policy and run it; each error is a finding."""
    statistics = ServerStatistics()
    parameters = replace(parameters, warmup_inferences=1)
    before_bytes, begin_s = resident_bytes(), clock()
    try:
        worker, missing = _load(parameters, default_path, statistics)
    except PolicyError as error:
        return PolicyExamination((failure(LOADS, str(error), PAGE),))
    except Exception as error:
        # code of another package may raise any error
        return PolicyExamination((failure(LOADS, one_line(error), f'fix the package; {PAGE}'),))
    loaded_s, grown_bytes = clock() - begin_s, resident_bytes() - before_bytes
    try:
        forward_ms = _measure(worker, runs, limit_s, clock)
    except InferenceFailed as error:
        found = failure('predicts', str(error), f'the policy fails on a black image; {PAGE}')
        return PolicyExamination((found,), worker.description)
    finally:
        worker.close()
    findings = (
        ok(LOADS, f'{parameters.policy_kind}, in {loaded_s:.1f} s'),
        *policy_findings(worker.description, missing),
        ok(
            'warm-up',
            f'the first prediction took {1e3 * statistics.service_s():.1f} ms, later ones '
            f'{float(np.median(forward_ms)):.1f} ms',
        ),
        memory_finding(grown_bytes),
    )
    return PolicyExamination(findings, worker.description, tuple(forward_ms))


def _load(
    parameters: ServerParameters, default_path: str, statistics: ServerStatistics
) -> tuple[InferenceWorker, str]:
    """
    Return the policy, and the error about its statistics. Raises PolicyError.

    A policy that loads only with allow_missing_statistics lacks statistics.
    """
    try:
        return policy_loading.load_worker(parameters, default_path, statistics), ''
    except PolicyError as error:
        if parameters.allow_missing_statistics:
            raise
        permissive = replace(parameters, allow_missing_statistics=True)
        try:
            return policy_loading.load_worker(permissive, default_path, statistics), str(error)
        except PolicyError:
            raise error from None


def _measure(
    worker: InferenceWorker, runs: int, limit_s: float, clock: Callable[[], float]
) -> list[float]:
    """Measure predictions [ms] until `runs` or the time limit. Raises InferenceFailed."""
    begin_s = clock()
    took_ms: list[float] = []
    while len(took_ms) < runs and (len(took_ms) < RUNS_NEEDED or clock() - begin_s < limit_s):
        took_ms.append(1e3 * worker.warm_up(1))
    return took_ms


def policy_findings(served: PolicyDescription, missing_statistics: str) -> list[Finding]:
    """Return the properties of a policy, and its notes for the operator."""
    kind = served.state_class.name.lower()
    found = [
        ok('classified', f'{served.policy_type}, {kind}: {CLASSES[served.state_class]}'),
        ok(
            'gives',
            f'chunks of {served.chunk_size} rows of {len(served.action_names)} actions from '
            f'{len(served.state_names)} values and {len(served.cameras)} cameras, '
            f'{"with" if served.supports_rtc else "without"} real-time chunking',
        ),
        statistics_finding(missing_statistics),
        ok('fingerprint', served.fingerprint),
    ]
    return found + [
        warning('note', note, f'check that it is intended: it is sent to every robot; {PAGE}')
        for note in served.notes
        if not missing_statistics
    ]


def statistics_finding(missing: str) -> Finding:
    name = 'statistics'
    if not missing:
        return ok(name, 'present for all normalised values')
    return failure(
        name,
        missing,
        'save the policy again with its processors and their statistics; only if raw values are '
        'intended, set --parameter allow_missing_statistics=true, also for the policy_server',
    )


def is_exclusive(served: PolicyDescription) -> bool:
    return served.state_class is StateClass.EXCLUSIVE


def memory_finding(grown_bytes: int) -> Finding:
    """
    Return a finding about the memory that loading took; the loader refuses a policy that does not
    fit.
    """
    room = host_memory()
    return ok(
        'memory',
        f'{max(0, grown_bytes) // MIB} MiB of host memory used; {room.free_bytes // MIB} of '
        f'{room.total_bytes // MIB} MiB of {room.location} are free',
    )


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 if unknown."""
    try:
        lines = Path('/proc/self/status').read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith('VmRSS:')), 0)
