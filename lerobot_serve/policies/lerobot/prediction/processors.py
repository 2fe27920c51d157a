# SPDX-License-Identifier: Apache-2.0
"""
A pair of LeRobot's processors for each session. Inference thread.

A pair is loaded once as a template; each session works with a copy, so that the state of a step
never reaches another session. Statistics and tokenizers, which no call changes, are shared.

A policy with relative actions predicts differences from the state of its observation. So a prefix
is sent in the robot's units and converted to differences from the current state, by the same steps
as in training: the step that makes actions relative, then the normalizer. LeRobot's own loop
converts the prefix in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import copy
from dataclasses import dataclass
from typing import Any

import torch

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import Checkpoint, ProcessorStepSpec
from lerobot_serve.policies.lerobot.checkpoint.features import STATE
from lerobot_serve.policies.lerobot.checkpoint.processor_step_rules import STEP_RULES
from lerobot_serve.policies.lerobot.checkpoint.version_rules import check_registered_step
from lerobot_serve.policies.lerobot.compat import import_steps, is_trusted, lerobot

# LeRobot's names of steps; the last one makes actions relative in training
DEVICE_STEP, NORMALIZER_STEP = 'device_processor', 'normalizer_processor'
RELATIVE_STEP, RELATIVE_WORDS = 'relative_actions_processor', ('relative', 'absolute', 'delta')
# relative tolerance; float32 has seven digits
TOLERANCE = 1e-3
SHARED_LIBRARIES = ('transformers', 'tokenizers')


@dataclass(frozen=True, slots=True)
class ProcessorPair:
    """
    The processors of one session: observations to the network's input, chunks to robot units.

    Both hold their state; they are copied together, because one may refer to the other.
    """

    pre: Any
    post: Any

    def preprocess(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the input of the network for one observation of batch size 1."""
        with torch.no_grad():
            row: dict[str, Any] = self.pre(observation)
        for step in self.pre.steps:
            # steps keep a reference to the last observation, images included
            if hasattr(step, '_current_transition'):
                step._current_transition = None
        return row

    @property
    def reanchorer(self) -> PrefixReanchorer | None:
        """The re-anchoring of a prefix to the last observation; None if not supported."""
        return find_reanchorer(self.pre.steps)

    def postprocess(self, chunk: torch.Tensor, *, whole: bool) -> torch.Tensor:
        """Return a chunk of 1 x rows x actions in the robot's units, on the CPU."""
        with torch.no_grad():
            if whole:
                robot: torch.Tensor = self.post(chunk).cpu()
                return robot
            return torch.stack([self.post(row).cpu() for row in chunk.unbind(1)], dim=1)


class ProcessorPairFactory:
    """
    Creates the pair of each session.

    `is_stateful`: a pair may keep state of its session. `is_relative`: actions are relative to a
    state. `can_reanchor`: a prefix of such actions can be converted to another state.
    `takes_whole_chunk`: a whole chunk is processed at once.
    """

    def __init__(
        self, template: ProcessorPair, is_relative: bool, takes_whole_chunk: bool = False
    ) -> None:
        self.is_relative = is_relative
        self.can_reanchor = is_relative and template.reanchorer is not None
        self.is_stateful = is_relative or not all(map(_is_own_step, _steps(template)))
        self.takes_whole_chunk = takes_whole_chunk
        self._template = template
        self._shared = list(_shared_values(template))

    def new_pair(self) -> ProcessorPair:
        """Return a new pair without state."""
        return self.copy(self._template)

    def copy(self, pair: ProcessorPair) -> ProcessorPair:
        """Return a copy of a pair with its state."""
        return copy.deepcopy(pair, {id(value): value for value in self._shared})

    def check_whole_chunk(self, observation: dict[str, Any], chunk: torch.Tensor) -> bool:
        """Return whether processing a whole chunk gives the same result as row by row."""
        pair = self.new_pair()
        pair.preprocess(observation)
        rows = self.copy(pair).postprocess(chunk, whole=False)
        try:
            together = pair.postprocess(chunk, whole=True)
        except (RuntimeError, ValueError, IndexError):
            return False
        is_same: bool = rows.shape == together.shape and torch.equal(rows, together)
        return is_same

    def check_reanchoring(self, observation: dict[str, Any], chunk: torch.Tensor) -> bool:
        """Return whether a prefix of relative actions is converted correctly to another state."""
        pair = self.new_pair()
        pair.preprocess(observation)
        robot = pair.postprocess(chunk, whole=self.takes_whole_chunk)
        return pair.reanchorer is not None and can_reanchor(pair.reanchorer, chunk[0], robot[0])


def load_processors(
    folder: Checkpoint, config: Any, device: torch.device, trusted_packages: tuple[str, ...] = ()
) -> ProcessorPairFactory:
    """
    Return the processors of a policy folder. Raises any error of LeRobot.

    Raises PolicyError for a step that is neither known nor of a trusted package.
    """
    import_steps(type(config))
    for step in folder.steps:
        _check_owner(step, trusted_packages)
    pre, post = lerobot().make_processors(
        config,
        pretrained_path=str(folder.path),
        preprocessor_overrides=_overrides(folder, folder.preprocessor, str(device)),
        # the chunk is converted to numpy, so its device is the CPU, independent of the file
        postprocessor_overrides=_overrides(folder, folder.postprocessor, 'cpu', normalizes=False),
    )
    pair = ProcessorPair(pre, post)
    for step in _steps(pair):
        if statistics := getattr(step, '_tensor_stats', None):
            step._tensor_stats = _cloned(statistics)
    return ProcessorPairFactory(pair, any(map(_is_relative, folder.steps)))


def _check_owner(step: ProcessorStepSpec, trusted_packages: tuple[str, ...]) -> None:
    owner = lerobot().registered_step(step.registry_name)
    check_registered_step(step.registry_name, owner is not None)
    if step.registry_name in STEP_RULES and (owner is None or _is_of_lerobot(owner)):
        return  # LeRobot reports an unknown name
    if owner is None or not is_trusted(owner, trusted_packages):
        raise PolicyError(
            f'the processor step {step.registry_name!r:.80} is neither known nor of '
            f'{", ".join(trusted_packages) or "a package that trusted_packages names"}'
        )


def _cloned(statistics: dict[str, dict[str, torch.Tensor]]) -> dict[str, dict[str, torch.Tensor]]:
    """Return copies of the tensors: a mapped file may change."""
    return {
        key: {name: value.clone() for name, value in values.items()}
        for key, values in statistics.items()
    }


def _overrides(
    folder: Checkpoint,
    steps: tuple[ProcessorStepSpec, ...],
    device: str,
    *,
    normalizes: bool = True,
) -> dict[str, dict[str, str]]:
    """Return device and tokenizer folder of the steps that the policy has."""
    names = {DEVICE_STEP, NORMALIZER_STEP} if normalizes else {DEVICE_STEP}
    computing = {
        step.registry_name: {'device': device} for step in steps if step.registry_name in names
    }
    assets = {asset.name: str(asset.folder) for asset in folder.assets}
    named = {
        step.registry_name: {'tokenizer_name': assets[step.config['tokenizer_name']]}
        for step in steps
        if step.config.get('tokenizer_name') in assets
    }
    return computing | named


def _is_relative(step: ProcessorStepSpec) -> bool:
    return step.active and any(word in step.registry_name for word in RELATIVE_WORDS)


def _is_own_step(step: object) -> bool:
    """Return whether a step is LeRobot's own; of these, only relative ones keep state."""
    return _is_of_lerobot(type(step))


def _is_of_lerobot(part: type) -> bool:
    return part.__module__.partition('.')[0] == 'lerobot'


def _steps(pair: ProcessorPair) -> Iterator[Any]:
    yield from pair.pre.steps
    yield from pair.post.steps


def _shared_values(pair: ProcessorPair) -> Iterator[Any]:
    """Yield the values that all copies share: statistics and tokenizers."""
    for step in _steps(pair):
        for name, value in vars(step).items():
            if name in ('_tensor_stats', 'stats') and _is_own_step(step):
                yield from _leaf_values(value)
            elif type(value).__module__.split('.')[0] in SHARED_LIBRARIES:
                yield value


def _leaf_values(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaf_values(each)
    else:
        yield value


class PrefixReanchorer:
    """The preprocessor steps of a session that re-anchor a prefix. They may raise any error."""

    def __init__(self, relative: Any, normalizer: Any | None) -> None:
        self._relative, self._normalizer = relative, normalizer

    def reanchor_prefix(self, robot: torch.Tensor) -> torch.Tensor:
        """
        Return rows of absolute actions in model space, relative to the last state that the
        preprocessor processed.
        """
        parts = lerobot()
        state = self._relative.get_cached_state()
        # the normalizer moves its statistics to the device of its input and leaves them there
        robot = robot.to(state.device)
        transition = parts.create_transition(observation={STATE: state}, action=robot)
        action: torch.Tensor = self._relative(transition)[parts.transition_key.ACTION]
        if self._normalizer is not None:
            action = action.to(statistics_device(self._normalizer, action.device))
            normalized = self._normalizer(parts.create_transition(action=action))
            action = normalized[parts.transition_key.ACTION]
        return action


def find_reanchorer(steps: Iterable[Any]) -> PrefixReanchorer | None:
    """Return the re-anchoring for the steps of a preprocessor; None if not supported."""
    named = {getattr(type(step), '_registry_name', ''): step for step in steps}
    relative = named.get(RELATIVE_STEP)
    if relative is None or not getattr(relative, 'enabled', False):
        return None
    return PrefixReanchorer(relative, named.get(NORMALIZER_STEP))


def statistics_device(normalizer: Any, default: torch.device) -> torch.device:
    """Return the device of a normalizer."""
    for values in normalizer._tensor_stats.values():
        for value in values.values():
            device: torch.device = value.device
            return device
    return default


def can_reanchor(reanchorer: PrefixReanchorer, model: torch.Tensor, robot: torch.Tensor) -> bool:
    """
    Return whether re-anchoring a chunk at its own state returns the same chunk.

    If not, a step in between changes actions in a way that re-anchoring does not invert.
    """
    again = reanchorer.reanchor_prefix(robot).to(model.device)
    if again.shape != model.shape:
        return False
    is_close: bool = torch.allclose(again, model, rtol=TOLERANCE, atol=TOLERANCE)
    return is_close
