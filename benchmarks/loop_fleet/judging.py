# SPDX-License-Identifier: Apache-2.0
"""What a loop that was killed again and again has left: its store, its bags and its traces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from lerobot_serve.contract.data_path.chunk import read_reply_summary, ReplySummary
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.tools.bags.message import BagError, CHUNK
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.gate.figures import reaches_robot
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.store import check


def faults_of_store(store: Path, served: Collection[str], first: str) -> list[str]:
    """
    Return what is wrong with the versions of a store, and which of the `served` policies are
    neither one of them nor the `first` one.
    """
    faults, whole = [], {digest_of(first)}
    for folder in sorted(store.glob('*@*')):
        try:
            whole.add(digest_of(check(folder).id))
        except VersionError as error:
            faults.append(str(error))
    faults += [
        f'{policy} was served and is not a whole version' for policy in sorted(served)
        if digest_of(policy) not in whole
    ]  # fmt: skip
    return faults


def faults_of_bags(bags: Path) -> tuple[list[str], int]:
    """
    Return the episodes whose policy changed without a flag, and how many replies were read.
    """
    faults, count = [], 0
    for folder in sorted(each.parent for each in bags.glob('*/metadata.yaml')):
        replies = list(replies_of(folder))
        count += len(replies)
        faults += [f'{folder.name}: {text}' for text in unflagged_changes(replies)]
    return faults, count


def replies_of(folder: Path) -> Iterator[ReplySummary]:
    """Yield the replies with actions that reached robots, as a bag has them."""
    try:
        for message in Bag(folder).read():
            if message.type == CHUNK and reaches_robot(message.topic):
                reply = read_reply_summary(message.data)
                if reply.status == Status.OK and reply.start.episode_id:
                    yield reply
    except (BagError, Malformed):
        # a bag that a killed recorder left is whole up to there
        return


def unflagged_changes(replies: Iterable[ReplySummary]) -> list[str]:
    """Return the replies of another policy than the one before in their episode, unflagged."""
    ordered = sorted(replies, key=lambda each: each.start.header.seq)
    last: dict[tuple[str, str], str] = {}
    faults = []
    for reply in ordered:
        episode = reply.start.client_id, reply.start.episode_id
        policy = digest_of(reply.policy)
        before = last.setdefault(episode, policy)
        last[episode] = policy
        if policy != before and not reply.start.header.flags & Flag.POLICY_CHANGED:
            faults.append(
                f'request {reply.start.header.seq} of episode {episode[1]} is answered by '
                f'{policy} after {before}, without POLICY_CHANGED'
            )
    return faults


def faults_of_traces(traces: Path) -> tuple[list[str], int]:
    """Return the checks of the audit that are violated, and how many episodes it joined."""
    found = run_audit([traces])
    faults = [
        f'audit: {result.check}: {result.violations} violations, first {result.shown[0].text}'
        for result in found.results
        if result.outcome is CheckStatus.VIOLATED
    ]
    return faults, found.joined
