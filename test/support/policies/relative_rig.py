# SPDX-License-Identifier: Apache-2.0
"""
SmolVLA with relative actions, by the two steps that newer releases of LeRobot have for that.

Where the installed LeRobot lacks them, these stand in under the same names and with the same
interface; importing this registers them. Importing it needs LeRobot.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import shutil

import torch

from support.policies.lerobot_rig import folder_of, LEROBOT, ROOT
from support.policies.tiny_policies import insert

ACTION, OBSERVATION = LEROBOT.transition_key.ACTION, LEROBOT.transition_key.OBSERVATION

from lerobot.processor import ProcessorStep, ProcessorStepRegistry  # noqa: E402

STATE = 'observation.state'
RELATIVE, ABSOLUTE = 'relative_actions_processor', 'absolute_actions_processor'
NAMES = [f'joint_{number}.pos' for number in range(6)]


def shifted(action: torch.Tensor, state: torch.Tensor, mask: list[bool], sign: int):
    """Return actions with the state added or taken away where the mask says so."""
    offset = sign * state * torch.tensor(mask, dtype=action.dtype)
    return action + (offset.unsqueeze(-2) if action.ndim == 3 else offset)


class Steps:
    """What a test needs to bring a step of its own."""

    base, register = ProcessorStep, staticmethod(ProcessorStepRegistry.register)


@dataclass
class RelativeActions(ProcessorStep):
    """Takes the state away from actions, on the way in; remembers it for the way out."""

    enabled: bool = False
    exclude_joints: list | None = None
    action_names: list | None = None
    last = None
    newest = None

    def __post_init__(self) -> None:
        RelativeActions.newest = self

    def mask(self, count: int) -> list[bool]:
        names = self.action_names or [''] * count
        return [not any(word in name for word in self.exclude_joints or ()) for name in names]

    def get_cached_state(self):
        return self.last

    def __call__(self, transition):
        state = (transition.get(OBSERVATION) or {}).get(STATE)
        if state is not None:
            self.last = state
        action = transition.get(ACTION)
        if not self.enabled or action is None or state is None:
            return transition
        mask = self.mask(action.shape[-1])
        return transition | {ACTION: shifted(action, state, mask, -1)}

    def transform_features(self, features):
        return features


@dataclass
class AbsoluteActions(ProcessorStep):
    """Adds the state again, on the way out."""

    enabled: bool = False

    def __post_init__(self) -> None:
        # the way in is loaded first
        self.relative_step = RelativeActions.newest

    def __call__(self, transition):
        step, action = self.relative_step, transition[ACTION]
        mask = step.mask(action.shape[-1])
        return transition | {ACTION: shifted(action, step.last, mask, 1)}

    def transform_features(self, features):
        return features


for name, step in ((RELATIVE, RelativeActions), (ABSOLUTE, AbsoluteActions)):
    if name not in ProcessorStepRegistry.list():
        # a known step must be LeRobot's own
        step.__module__ = ProcessorStep.__module__
        ProcessorStepRegistry.register(name)(step)


def relative_folder(*, exclude: tuple[str, ...] = (), after: str = '') -> Path:
    """
    Return the folder of a SmolVLA whose actions are relative, but for the joints `exclude`;
    `after` is one more step, on the way out.
    """
    folder = ROOT / '-'.join(['relative', *exclude, after])
    if not folder.exists():
        shutil.copytree(folder_of('smolvla'), folder)
        make_relative(folder, exclude, after)
    return folder


def make_relative(folder: Path, exclude: tuple[str, ...] = (), after: str = '') -> Path:
    """Put the two steps into the processors of a policy, and return its folder."""
    config = {'enabled': True, 'exclude_joints': list(exclude), 'action_names': NAMES}
    insert(folder / 'policy_preprocessor.json', 'to_batch_processor', RELATIVE, **config)
    post = folder / 'policy_postprocessor.json'
    insert(post, 'unnormalizer_processor', ABSOLUTE, enabled=True)
    if after:
        insert(post, ABSOLUTE, after)
    return folder


def reanchored(preprocessor, rows: torch.Tensor, excluded: tuple[str, ...] = ()) -> torch.Tensor:
    """
    Return the prefix that LeRobot's loop guides with: differences from the state that the
    preprocessor saw last, through its normalizer.
    """
    steps = {type(step)._registry_name: step for step in preprocessor.steps}
    mask = torch.tensor([not any(word in name for word in excluded) for name in NAMES]).float()
    relative = rows - steps[RELATIVE].get_cached_state() * mask
    normalize = steps['normalizer_processor']
    return normalize(LEROBOT.create_transition(action=relative))[ACTION]
