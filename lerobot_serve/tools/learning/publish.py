# SPDX-License-Identifier: Apache-2.0
"""Publish the policy of a round into the store. A child process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

from lerobot_serve.learner.steps.lines import Advance, PublishDone, PublishJob, Report
from lerobot_serve.tools.versions.identity import identify
from lerobot_serve.versions.errors import PublishError
from lerobot_serve.versions.manifest import TIME_FORMAT
from lerobot_serve.versions.publishing import Details, policy_paths, publish
from lerobot_serve.versions.store import Store


def publish_policy(
    job: PublishJob,
    report: Callable[[Report], None],
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
) -> PublishDone:
    """Copy a policy, whole or not at all; a version that is there is the result. VersionError."""
    policy = job.policy
    total_bytes = sum((policy / path).stat().st_size for path in policy_paths(policy)[0])
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        report(Advance(min(1.0, done / max(1, total_bytes))))

    found = identify(policy).fingerprint
    if found != job.fingerprint:
        raise PublishError(
            f'{policy} changed after training: it was {job.fingerprint} and is {found} now; begin '
            'the round again'
        )
    details = Details(
        created=now().strftime(TIME_FORMAT),
        parent=job.parent,
        dataset_sha256=job.dataset_sha256,
        note=job.note,
        sources=job.sources,
    )
    published = publish(Store.make(job.store), policy, identify, details, count)
    return PublishDone(published.manifest.id)
