# SPDX-License-Identifier: Apache-2.0
"""
Plan one row for each ExecutedAction, from the messages that the edge had at that step.

ExecutedAction names the newest message of each input by its source timestamp; a row has exactly
these messages. Nothing is resampled, interpolated or filled: a row without one of them is left
out, and an input that is missing or old for longer than its bound cuts the episode. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
import statistics

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.edge.robot.file_format import RobotFileError
from lerobot_serve.experience.recorded_episode import word_of
from lerobot_serve.tools.dataset.bag_index import BagIndex, EpisodeId, EpisodeRows, TopicMessages
from lerobot_serve.tools.dataset.episodes import (
    DatasetError,
    EpisodePlan,
    MessageKey,
    parse_robot,
    PlannedRow,
    RecordedRobot,
    RobotInput,
)

# the resolution of source timestamps differs between middlewares
TOLERANCE_NS = 1000
# rows by which the rate of an episode is measured
RATE_ROWS = 1000


class SourceStamps:
    """Finds the message of a topic by its source timestamp."""

    def __init__(self, topics: dict[str, TopicMessages], unusable: Set[MessageKey]) -> None:
        self._topics, self._unusable = topics, unusable
        self._sorted: dict[str, list[tuple[int, int]]] = {}

    def find(self, topics: tuple[str, ...], sent_ns: int) -> MessageKey | None:
        """Return the message in the first of these topics that has it, None for none."""
        for topic in topics:
            key = self._find(topic, sent_ns) if topic in self._topics else None
            if key is not None and key not in self._unusable:
                return key
        return None

    def received_ns(self, key: MessageKey) -> int:
        return self._topics[key.topic].received_ns[key.number]

    def _find(self, topic: str, sent_ns: int) -> MessageKey | None:
        known = self._sorted.get(topic)
        if known is None:
            stamps = self._topics[topic].sent_ns
            known = self._sorted[topic] = sorted((at, i) for i, at in enumerate(stamps))
        at = bisect_left(known, (sent_ns - TOLERANCE_NS, -1))
        near = []
        while at < len(known) and known[at][0] <= sent_ns + TOLERANCE_NS:
            near.append((abs(known[at][0] - sent_ns), known[at][1]))
            at += 1
        return MessageKey(topic, min(near)[1]) if near else None


@dataclass(slots=True)
class _Rows:
    """The rows of one episode so far."""

    planned: list[PlannedRow]
    left_out: Counter[str]
    gap_began_ns: int | None = None
    cut: str = ''


def plan_recorded(
    index: BagIndex,
    *,
    robot_name: str = '',
    task: str = '',
    unusable: Set[MessageKey] = frozenset(),
) -> Iterator[EpisodePlan]:
    """
    Yield the episodes of the bags, of one robot with `robot_name`; `task` is for those without
    one. Messages in `unusable` count as missing. Raises DatasetError.
    """
    stamps = SourceStamps(index.topics, unusable)
    # an edge that began again may have another robot file
    robots: dict[tuple[str, str], RecordedRobot] = {}
    for key, recorded in index.episodes.items():
        if robot_name and key.client_id != robot_name:
            continue
        if not index.has_source_stamps:
            raise DatasetError(
                'the bags have no source timestamps, by which rows name their messages (SQLite '
                'does not keep them); record MCAP, or sample the bags with --robot robot.yaml'
            )
        place = key.node, recorded.robot_file
        if place not in robots:
            robots[place] = _robot_of(key, recorded.robot_file)
        yield _plan(index, key, recorded, robots[place], stamps, task)


def _robot_of(key: EpisodeId, text: str) -> RecordedRobot:
    if not text:
        raise DatasetError(
            f'the bags hold no robot file of {key.client_id!r} (topic {key.node}/robot_file); '
            'record it together with its executed_action'
        )
    try:
        return parse_robot(text, f'robot file of {key.client_id!r}', key.node)
    except RobotFileError as error:
        raise DatasetError(str(error)) from error


def _plan(
    index: BagIndex,
    key: EpisodeId,
    recorded: EpisodeRows,
    robot: RecordedRobot,
    stamps: SourceStamps,
    task: str,
) -> EpisodePlan:
    rows = _Rows([], Counter())
    # overlapping recordings are read one after the other
    ordered = sorted(
        ((row, decode(ExecutedAction, row.data)) for row in recorded.rows),
        key=lambda pair: pair[1].control_step,
    )
    _check_one_attempt([executed for _, executed in ordered], key, recorded.bags)
    for row, executed in ordered:
        _check_size(executed, robot, key)
        if rows.cut:
            rows.left_out['after the cut'] += 1
        else:
            _add_row(rows, row.received_ns, row.data, executed, robot, stamps)
    outcome = index.outcomes.get((key.client_id, key.episode_id))
    kept = {row.executed for row in rows.planned}
    used = [one for row, one in ordered if row.data in kept]
    return EpisodePlan(
        key.client_id,
        key.episode_id,
        robot,
        tuple(rows.planned),
        _rate([one for _, one in ordered], robot.description.fps, key),
        task=index.tasks.get((key.client_id, key.episode_id), '') or task,
        outcome=word_of(outcome.outcome) if outcome else '',
        score=outcome.score if outcome else float('nan'),
        is_whole=not rows.cut and recorded.followed,
        cut=rows.cut,
        left_out=rows.left_out,
        slots=frozenset(one.slot for one in used if one.slot),
        policies=frozenset(one.policy for one in used if one.policy),
        intervened=any(one.source == ExecutedAction.Source.PERSON for one in used),
    )


def _add_row(
    rows: _Rows,
    received_ns: int,
    data: bytes,
    executed: ExecutedAction,
    robot: RecordedRobot,
    stamps: SourceStamps,
) -> None:
    """Add a row, leave it out, or cut the episode."""
    if not executed.commanded.size:
        rows.left_out['no command was sent'] += 1
        return
    keys = []
    for one, sent_ns in zip(robot.inputs, executed.input_ids, strict=False):
        key = stamps.find(one.topics, sent_ns) if sent_ns else None
        if key is None:
            _miss(rows, one, received_ns)
            return
        if received_ns - stamps.received_ns(key) > one.max_age_ns:
            _cut(rows, one, f'its newest message is older than {one.max_age_ns / 1e9:g} s')
            return
        keys.append(key)
    rows.gap_began_ns = None
    rows.planned.append(PlannedRow(tuple(keys), data, received_ns))


def _miss(rows: _Rows, one: RobotInput, received_ns: int) -> None:
    """Leave a row out; cut the episode once the gap is longer than the bound of the input."""
    if not rows.planned:
        rows.left_out[f'no message of {one.topics[0]} yet'] += 1
        return
    rows.left_out[f'no message of {one.topics[0]} in the bag'] += 1
    if rows.gap_began_ns is None:
        rows.gap_began_ns = received_ns
    if received_ns - rows.gap_began_ns > one.max_age_ns:
        _cut(rows, one, f'it is missing for more than {one.max_age_ns / 1e9:g} s', count=False)


def _cut(rows: _Rows, one: RobotInput, why: str, *, count: bool = True) -> None:
    rows.left_out[f'{one.topics[0]}: {why}'] += int(count)
    if rows.planned:
        rows.cut = f'cut after row {len(rows.planned)}: {one.name} ({one.topics[0]}): {why}'


def _check_one_attempt(rows: list[ExecutedAction], key: EpisodeId, bags: list[str]) -> None:
    """Raise DatasetError for rows of two attempts, which would alternate in one episode."""
    for before, after in pairwise(rows):
        # a second recording of a row has the same bytes, and is not a row of its own
        if after.control_step == before.control_step or after.stamp.ns < before.stamp.ns:
            raise DatasetError(
                f'{key.client_id!r} episode {key.episode_id!r} has rows of two attempts, or its '
                f'clock was set back: control step {after.control_step} does not follow '
                f'{before.control_step}, in {" and ".join(bags)}; an id is for one attempt: '
                'convert the bags into a dataset each, or leave one out'
            )


def _check_size(executed: ExecutedAction, robot: RecordedRobot, key: EpisodeId) -> None:
    """Raise DatasetError for a robot file that is not of this robot."""
    count, inputs = len(robot.description.actions), len(robot.inputs)
    if executed.commanded.size not in (0, count) or len(executed.input_ids) < inputs:
        raise DatasetError(
            f'the recorded robot file does not fit {key.client_id!r}: it has {count} actions and '
            f'{inputs} inputs, the rows have {executed.commanded.size} values and '
            f'{len(executed.input_ids)} inputs'
        )


def _rate(rows: list[ExecutedAction], fps: float, key: EpisodeId) -> int:
    """Return rows a second: the rate of the policy, or a multiple of it with interpolation."""
    if fps != round(fps):
        raise DatasetError(
            f'{key.client_id!r} runs at {fps:g} Hz; LeRobot datasets have whole frames a second'
        )
    steps = [
        (after.stamp.ns - before.stamp.ns) / 1e9
        for before, after in pairwise(rows[:RATE_ROWS])
        if after.control_step == before.control_step + 1 and after.stamp.ns > before.stamp.ns
    ]
    multiple = round(1 / (fps * statistics.median(steps))) if steps else 1
    return round(fps) * max(1, multiple)
