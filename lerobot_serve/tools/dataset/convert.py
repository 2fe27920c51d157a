# SPDX-License-Identifier: Apache-2.0
"""
Convert bags into a dataset: index, plan, write each episode, join, check, replace. One thread.

Everything that decides is known after the first pass; the second pass only decodes and encodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
import hashlib
import json
from pathlib import Path

from lerobot_serve.edge.robot.file_format import (
    parse_yaml,
    read_bytes,
    ROBOT_BYTES_LIMIT,
    RobotFileError,
)
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.dataset import lerobot_writer, records
from lerobot_serve.tools.dataset.as_of import check_first_messages, plan_sampled
from lerobot_serve.tools.dataset.bag_index import (
    bag_bytes,
    BagBegin,
    BagIndex,
    in_time_order,
    index_bags,
)
from lerobot_serve.tools.dataset.checking import agreed_features, check_dataset
from lerobot_serve.tools.dataset.episodes import (
    DatasetError,
    EpisodePlan,
    Filter,
    is_selected,
    MessageKey,
    parse_filter,
    parse_robot,
    RecordedRobot,
    RobotInput,
)
from lerobot_serve.tools.dataset.executed import plan_recorded
from lerobot_serve.tools.dataset.features import (
    Features,
    FrameShape,
    MILLIMETRE_RULE,
    SUCCESS,
)
from lerobot_serve.tools.dataset.feeding import (
    begins_of,
    camera_shapes,
    inputs_of,
    RowFeed,
)
from lerobot_serve.tools.dataset.ros.message_values import MessageValues
from lerobot_serve.tools.dataset.settings import ConversionReport, ConversionResult, DatasetOptions
from lerobot_serve.tools.dataset.staging import EpisodeSink, Staging

# over the bags; each finds all messages of the planned rows that cannot be used
PASSES = 10
# reasons why messages cannot be used
NOTED = 10


@dataclass(slots=True)
class _Planned:
    """The plans of the bags, and the frames of each camera by the digest of the robot file."""

    plans: list[EpisodePlan]
    shapes: dict[str, dict[str, FrameShape]]
    damage: list[str]


def convert(
    paths: Iterable[Path],
    out: Path,
    options: DatasetOptions,
    report: ConversionReport,
    *,
    joins: bool = True,
) -> ConversionResult:
    """
    Convert the bags. Without `joins` the episodes stay in the staging folder, for the next
    conversion. Raises DatasetError, BagError, WrongCommandLine, OSError.
    """
    filters = tuple(map(parse_filter, options.filters))
    bags = in_time_order([Bag(path) for path in paths])
    out.parent.mkdir(parents=True, exist_ok=True)
    with Staging(out) as staging:
        try:
            if out.exists() and not (options.append or staging.was_published):
                raise DatasetError(f'{out} exists already; name a new folder, or --append to it')
            lerobot_writer.load_lerobot(staging.cache)
            return _Conversion(options, filters, report, bags, staging, joins=joins).run()
        finally:
            staging.remove_if_empty()


class _Conversion:
    """One conversion under the lock of its staging folder."""

    def __init__(
        self,
        options: DatasetOptions,
        filters: Sequence[Filter],
        report: ConversionReport,
        bags: list[Bag],
        staging: Staging,
        *,
        joins: bool,
    ) -> None:
        self._options, self._filters, self._report, self._joins = options, filters, report, joins
        self._values = MessageValues(depth_millimetres=options.depth_millimetres)
        self._bags, self._staging, self._out = bags, staging, staging.out
        self._unusable: set[MessageKey] = set()
        # why messages cannot be used, in all passes
        self._reasons: Counter[str] = Counter()
        # each pass plans again, and finds much of what was noted
        self._noted: set[str] = set()
        self._there = records.Existing.read(self._out) if self._out.exists() else None
        self._result = ConversionResult()

    def run(self) -> ConversionResult:
        indexes = self._index()
        for _ in range(PASSES):
            self._result = ConversionResult()
            planned = self._plan(indexes)
            plans = self._select(planned)
            if not plans:
                self._note_unusable()
                return self._finish_without(planned)
            features = agreed_features(
                plans, planned.shapes, self._there, self._out, self._options, self._note
            )
            names = [self._staged_name(plan, features) for plan in plans]
            unusable = self._write(plans, names, features, planned.shapes, begins_of(indexes))
            if not unusable:
                self._note_unusable()
                return self._join(plans, names) if self._joins else self._result
            self._unusable |= unusable.keys()
            self._reasons.update(unusable.values())
        self._note_unusable()
        raise DatasetError(
            f'messages that cannot be used were found in each of {PASSES} passes; the last: '
            f'{next(iter(unusable.values()))}'
        )

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._report.note(text)

    def _note_unusable(self) -> None:
        for text, count in self._reasons.most_common(NOTED):
            self._note(f'{count} messages cannot be used and count as missing: {text}')
        others = sum(count for _, count in self._reasons.most_common()[NOTED:])
        if others:
            self._note(f'{others} more messages cannot be used and count as missing')

    def _index(self) -> list[BagIndex]:
        count = self._report.begin('reading', bag_bytes(self._bags))
        if self._options.robot_file is None:
            return [index_bags(self._bags, count)]
        return [index_bags([bag], count) for bag in self._bags]

    def _plan(self, indexes: list[BagIndex]) -> _Planned:
        damage = [text for index in indexes for text in index.damage]
        plans: list[EpisodePlan] = []
        shapes: dict[str, dict[str, FrameShape]] = {}
        if self._options.robot_file is None:
            plans = list(
                plan_recorded(
                    indexes[0],
                    robot_name=self._options.robot_name,
                    task=self._options.task,
                    unusable=self._unusable,
                )
            )
            if not indexes[0].episodes:
                raise DatasetError(
                    'the bags hold no episode: no executed_action with an episode id; for bags of '
                    'other recorders name the robot file: --robot robot.yaml'
                )
            if not plans:
                names = sorted({key.client_id for key in indexes[0].episodes})
                raise DatasetError(
                    f'no episode of {self._options.robot_name!r}; the bags have {names}'
                )
        else:
            plans = self._sampled(self._options.robot_file, indexes)
        for plan in plans:
            if plan.rows and plan.robot.digest not in shapes:
                shapes[plan.robot.digest] = camera_shapes(plan, indexes, self._values)
        return _Planned(plans, shapes, damage)

    def _sampled(self, path: Path, indexes: list[BagIndex]) -> list[EpisodePlan]:
        try:
            robot = parse_robot(
                read_bytes(path, ROBOT_BYTES_LIMIT).decode(),
                str(path),
                '',
                parse=parse_yaml,
            )
        except (RobotFileError, UnicodeDecodeError) as error:
            raise DatasetError(str(error)) from error
        plans: list[EpisodePlan] = []
        if not self._noted and not self._unusable:
            self._check_robot(robot, indexes)
        for bag, index, begin in zip(self._bags, indexes, begins_of(indexes), strict=True):
            plans += plan_sampled(
                index,
                robot,
                bag_name=bag.path.stem,
                task=self._options.task,
                first_numbers=begin.first_numbers,
                unusable=self._unusable,
            )
        return plans

    def _check_robot(self, robot: RecordedRobot, indexes: list[BagIndex]) -> None:
        """Refuse a robot file that the bags do not fit, and note what a dataset will lack."""

        def decode(source: RobotInput | None, message: BagMessage) -> None:
            if source is None:
                self._values.command_values(message.data, robot.description, message.topic)
            elif source.camera:
                self._values.frame_of(message.data, message.topic, message.type)
            else:
                for each in source.sources:
                    self._values.state_values(message.data, each)

        for bag, index in zip(self._bags, indexes, strict=True):
            check_first_messages(bag.read(), robot, decode, bag.path.stem)
            if index.episodes:
                self._note(
                    f'{bag.path.stem} has executed actions: without --robot its rows are exactly '
                    'what the robot had seen, with outcomes and who commanded'
                )
        if not self._options.task:
            self._note('the episodes have no task; policies that read one need --task TEXT')

    def _select(self, planned: _Planned) -> list[EpisodePlan]:
        for text in planned.damage:
            self._note(text)
        selected = []
        passed = [p for p in planned.plans if is_selected(p, self._filters)]
        self._result.filtered = len(planned.plans) - len(passed)
        with_rows = [plan for plan in passed if plan.rows]
        known = self._there.refuse_others(with_rows) if self._there else frozenset()
        for plan in passed:
            if not plan.rows:
                self._result.without_rows += 1
                self._note(f'{plan.title}: no row: {records.left_out_text(plan)}')
            elif plan.digest in known:
                self._result.known += 1
            else:
                selected.append(plan)
                self._note_plan(plan)
        return selected

    def _note_plan(self, plan: EpisodePlan) -> None:
        if plan.cut:
            self._result.cut += 1
            self._note(f'{plan.title}: {plan.cut}')
        if plan.left_out:
            self._note(f'{plan.title}: rows left out: {records.left_out_text(plan)}')

    def _staged_name(self, plan: EpisodePlan, features: Features) -> str:
        about = json.dumps(
            [plan.digest, plan.labels, features, self._options.vcodec], sort_keys=True
        )
        return hashlib.sha256(about.encode()).hexdigest()[:32]

    def _write(
        self,
        plans: Sequence[EpisodePlan],
        names: Sequence[str],
        features: Features,
        shapes: dict[str, dict[str, FrameShape]],
        begins: Sequence[BagBegin],
    ) -> Mapping[MessageKey, str]:
        """Write the episodes; return the messages that cannot be used, whose episodes are not."""
        waiting = {
            plan.digest: name
            for plan, name in zip(plans, names, strict=True)
            if not self._staging.is_ready(name)
        }
        resumed = len(plans) - len(waiting)
        if resumed:
            self._report.note(f'{resumed} episodes were converted before')
        if not waiting:
            return {}
        count = self._report.begin('converting', bag_bytes(self._bags))
        sink = EpisodeSink(self._staging, waiting, features, self._options.vcodec)
        needed = [plan for plan in plans if plan.digest in waiting]
        feed = RowFeed(needed, shapes, self._values, is_labelled=SUCCESS in features)
        try:
            feed.run(inputs_of(needed, self._bags, begins, count), sink)
        finally:
            sink.close()
        if sink.left and not feed.unusable:
            raise DatasetError('the bags changed while they were read; convert them again')
        return feed.unusable

    def _join(self, plans: Sequence[EpisodePlan], names: Sequence[str]) -> ConversionResult:
        staged = [self._staging.path(name) for name in names]
        roots = [self._out, *staged] if self._there else staged
        lerobot_writer.merge(roots, self._staging.merged, self._staging.groups)
        rule = {'float_depth': MILLIMETRE_RULE} if self._options.depth_millimetres else {}
        lines = [self._staging.record(name) | rule for name in names]
        records.write(
            self._staging.merged,
            self._there,
            lines,
            [plan.robot for plan in plans],
            is_sampled=self._options.robot_file is not None,
        )
        faults = check_dataset(self._staging.merged, decode=self._options.check)
        if faults:
            raise DatasetError('the joined dataset is not whole:\n' + '\n'.join(faults))
        self._staging.publish()
        self._result.episodes, self._result.rows = len(plans), sum(len(p.rows) for p in plans)
        return self._with_totals()

    def _finish_without(self, planned: _Planned) -> ConversionResult:
        if self._there is None:
            raise DatasetError(
                f'nothing to convert: of {len(planned.plans)} episodes {self._result.filtered} do '
                f'not pass the filters and {self._result.without_rows} have no row'
            )
        if self._options.check:
            self._result.faults = check_dataset(self._out, decode=True)
        return self._with_totals()

    def _with_totals(self) -> ConversionResult:
        there = records.Existing.read(self._out)
        self._result.total_episodes, self._result.total_rows = there.episodes, there.rows
        return self._result
