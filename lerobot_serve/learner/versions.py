# SPDX-License-Identifier: Apache-2.0
"""
The versions of a learner: the one that a round builds on, what the router's canary says of them,
and their announcement. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from typing import NamedTuple

import msgspec

from lerobot_serve.contract.cdr import encodable_text
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.records import CanaryState, PolicyVersion
from lerobot_serve.contract.types import Time
from lerobot_serve.errors import UserError
from lerobot_serve.versions.manifest import Manifest, SOURCE_LIMIT, TIME_FORMAT


class NoParent(UserError):
    """There is no policy that a round may build on; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version that this learner published in a round, and what it was trained from."""

    id: str
    parent: str
    round: int


def choose_parent(
    versions: Sequence[Version],
    rejected: Collection[str],
    fallback: str,
    is_there: Callable[[str], bool],
    promoted: Collection[str] | None = None,
) -> str:
    """
    Return the fingerprint of the newest version that is in the store, and neither rejected nor a
    descendant of a rejected one; without one `fallback`, that of the parameter `parent`.

    With `promoted` only of these: one that a gate refused, or that still is on trial, may be no
    better than its parent, and what is trained from it is not a candidate for the champion's
    place. `versions` are in the order of their rounds, `rejected` and `promoted` are digests.
    Raises NoParent.
    """
    for version in reversed(versions):
        may_be = promoted is None or digest_of(version.id) in promoted
        if may_be and not is_barred(version.id, versions, rejected) and is_there(version.id):
            return version.id
    if not fallback:
        raise NoParent(
            'no version is left that a round may build on; set the parameter parent to a version '
            'or a folder, and restart the learner'
        )
    if digest_of(fallback) in rejected:
        raise NoParent(
            f'the parent {fallback} was rolled back, and there is no newer version; set the '
            'parameter parent to another version, and restart the learner, or promote it again '
            'with `lerobot-serve rollout`'
        )
    return fallback


def lineage(version_id: str, versions: Sequence[Version]) -> list[Version]:
    """Return a version and its ancestors that this learner published, the newest first."""
    by_digest = {digest_of(each.id): each for each in versions}
    found: list[Version] = []
    at = by_digest.get(digest_of(version_id))
    while at and at not in found:
        found.append(at)
        at = by_digest.get(digest_of(at.parent))
    return found


def is_barred(version_id: str, versions: Sequence[Version], rejected: Collection[str]) -> bool:
    """Return whether a version or one of its ancestors is rejected."""
    line = lineage(version_id, versions)
    digests = {digest_of(version_id), *(digest_of(each.id) for each in line)}
    digests |= {digest_of(each.parent) for each in line if each.parent}
    return bool(digests & set(rejected))


class PolicyVerdict(Enum):
    """What the state of a canary means for a policy."""

    NONE = 'none'
    # no round builds on it
    REJECTED = 'rejected'
    # only a person makes a rolled-back policy a candidate again: it stood the test then
    ACCEPTED = 'accepted'


# any other state has none
VERDICTS = {
    CanaryState.State.PROMOTED: PolicyVerdict.ACCEPTED,
    CanaryState.State.ROLLED_BACK: PolicyVerdict.REJECTED,
}


class CanaryNews(NamedTuple):
    """
    A verdict on a policy, by its fingerprint, with the reason; `champion` is the policy of slot a,
    empty if it is not known.
    """

    verdict: PolicyVerdict
    policy: str
    text: str
    champion: str = ''


def canary_news(canary: CanaryState) -> CanaryNews | None:
    """Return the verdict and the champion of a canary; None for neither."""
    policy, champion = canary.planned_policy or canary.candidate_policy, canary.champion_policy
    verdict = VERDICTS.get(canary.state, PolicyVerdict.NONE) if policy else PolicyVerdict.NONE
    if verdict is not PolicyVerdict.NONE:
        return CanaryNews(verdict, policy, encodable_text(canary.text), champion)
    return CanaryNews(PolicyVerdict.NONE, '', '', champion) if champion else None


def announcement(manifest: Manifest, sources: Sequence[str]) -> PolicyVersion:
    """Return the message of a version; its stamp is when it was published."""
    published = datetime.strptime(manifest.created, TIME_FORMAT).replace(tzinfo=timezone.utc)
    return msgspec.structs.replace(
        msgspec.convert(manifest, PolicyVersion, from_attributes=True),
        stamp=Time(int(published.timestamp())),
        sources=tuple(sources[:SOURCE_LIMIT]),
    )
