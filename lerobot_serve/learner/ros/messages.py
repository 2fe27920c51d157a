# SPDX-License-Identifier: Apache-2.0
"""The messages of a learner, from and to plain data. Pure; any thread."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

from builtin_interfaces.msg import Time

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.learner.rounds.settings import Shown
from lerobot_serve.learner.versions.verdicts import canary_news, CanaryNews, STATES
from lerobot_serve.versions.manifest import Manifest, TIME_FORMAT
from lerobot_serve_interfaces.msg import (
    CanaryState,
    DropCount,
    LearnerState,
    PolicyVersion,
    VersionFile,
)

SOURCES_LIMIT = 8


def news_of(message: CanaryState) -> CanaryNews | None:
    """Return the verdict and the champion of a canary; None for neither."""
    state = STATES[message.state] if message.state < len(STATES) else ''
    return canary_news(
        state,
        message.planned_policy,
        message.candidate_policy,
        encodable_text(message.text),
        message.champion_policy,
    )


def state_message(shown: Shown, learner: str, stamp: Time) -> LearnerState:
    """Return the state as people and tools see it."""
    return LearnerState(
        stamp=stamp,
        learner=learner,
        state=shown.phase.value,
        text=encodable_text(shown.text),
        round=shown.round,
        parent=shown.parent,
        latest=shown.latest,
        episodes=shown.episodes,
        episodes_new=shown.episodes_new,
        episodes_wanted=shown.episodes_wanted,
        progress=shown.progress,
        loss=_float32(shown.loss),
        remaining_s=_float32(shown.remaining_s),
        dropped=[
            DropCount(reason=reason, count=count)
            for reason, count in sorted(shown.dropped.items())
        ],
    )


def _float32(value: float) -> float:
    """Return a loss that diverged as infinity, which the message has room for."""
    limit = 3.4e38
    return float('inf') if value > limit else float('-inf') if value < -limit else value


def version_message(manifest: Manifest, store_path: str, sources: Sequence[str]) -> PolicyVersion:
    """Return the announcement of a version; its stamp is when it was published."""
    published = datetime.strptime(manifest.created, TIME_FORMAT).replace(tzinfo=timezone.utc)
    return PolicyVersion(
        stamp=Time(sec=int(published.timestamp())),
        id=manifest.id,
        policy_kind=manifest.policy_kind,
        parent=manifest.parent,
        dataset_sha256=manifest.dataset_sha256,
        files=[
            VersionFile(path=each.path, size_bytes=each.size_bytes, sha256=each.sha256)
            for each in manifest.files
        ],
        sources=[store_path, *sources][:SOURCES_LIMIT],
        note=manifest.note,
    )
