# SPDX-License-Identifier: Apache-2.0
"""
What a RobotClient asks for against what the policy is: agreed before the first observation, or
refused with the reason. Pure. Raises PredictionError (INVALID).

The client never says the names of its actions: it assigns the columns of a chunk to the
`action_features` of its robot in their order. LeRobot's robots have the same names, in the same
order, for their state and their actions, and those of the state are sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.gateway.callers.mapping import NameMapping
from lerobot_serve.gateway.callers.predictions import (
    invalid,
    Prediction,
    PredictionRequest,
)
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.peer_formats.safe_pickle import RemotePolicyConfig, TimedObservation

ANY_POLICY = '*'
STATE, CAMERA_PREFIX = 'observation.state', 'observation.images.'
# of LeRobot's server, where the policy does not say its own
DEFAULT_HZ = 30.0
# in which LeRobot's training leaves a policy: RUN/checkpoints/STEP/pretrained_model
CHECKPOINT_FOLDER = 'pretrained_model'


@dataclass(frozen=True)
class Agreement:
    """
    How the observations of one client become requests, and predictions its chunks. Raises
    PredictionError where the policy does not fit what the client asked for.
    """

    asked: RemotePolicyConfig
    contract: PolicyContract
    mapping: NameMapping
    is_order_confirmed: bool

    def __post_init__(self) -> None:
        check_inputs(self.state_names, self.cameras, self.contract, self.mapping)
        _ = self.columns

    @cached_property
    def state_names(self) -> tuple[str, ...]:
        return self.asked.features.get(STATE, ())

    @cached_property
    def cameras(self) -> tuple[str, ...]:
        names = self.asked.features
        return tuple(n.removeprefix(CAMERA_PREFIX) for n in names if n.startswith(CAMERA_PREFIX))

    @cached_property
    def columns(self) -> list[int] | None:
        """Columns of the policy, in the order of the client; None: as they are."""
        names, mapping = self.state_names, self.mapping
        ours = tuple(mapping.actions) or self.contract.action_names
        if names != ours and not self.is_order_confirmed:
            raise invalid(
                'LeRobot sends no names of actions, so the columns of a chunk are those of the '
                f'state ({", ".join(names)}), and the policy has the actions {", ".join(ours)}; '
                "if the robot's action_features are in the order of the policy, set "
                'lerobot.action_order_confirmed, or name the actions in lerobot.mapping'
            )
        if not mapping.actions:
            return None
        columns = mapping.action_columns(self.contract)
        return [column for each in columns.values() for column in each]

    @property
    def step_s(self) -> float:
        """Time from one action to the next."""
        return 1.0 / (self.contract.control_hz or DEFAULT_HZ)

    def request(self, seen: TimedObservation, *, episode_start: bool) -> PredictionRequest:
        """Return the request for an observation. Raises PredictionError."""
        missing = [n for n in (*self.state_names, *self.cameras) if n not in seen.values]
        if missing:
            raise invalid(f'the observation lacks {", ".join(missing)}, which were announced')
        mapping, task = self.mapping, seen.values.get('task', '')
        state = {name: seen.values[name] for name in self.state_names}
        frames = {name: as_image(name, seen.values[name]) for name in self.cameras}
        return PredictionRequest(
            state=mapping.state_vector(state, self.contract),
            images=mapping.images(frames, self.contract),
            task=task if isinstance(task, str) else '',
            episode_start=episode_start,
        )

    def rows(self, prediction: Prediction) -> Float32Array:
        """Return the actions for the client."""
        rows = prediction.actions[: self.asked.actions_per_chunk]
        return rows if self.columns is None else rows[:, self.columns]


def agree(
    asked: RemotePolicyConfig,
    contract: PolicyContract,
    settings: EndpointSettings,
    mapping: NameMapping,
) -> Agreement:
    """Return the agreement with a new client; `mapping` is that of the settings."""
    check_policy(asked.pretrained_name_or_path, contract, settings.policy_names)
    if asked.rename_map:
        raise invalid('rename_map is not supported; name the cameras in lerobot.mapping')
    check_chunk(asked.actions_per_chunk, contract.chunk_steps)
    return Agreement(asked, contract, mapping, settings.action_order_confirmed)


def agree_again(contract: PolicyContract, before: Agreement) -> Agreement:
    """Return the agreement once the operator serves another policy, by whatever name."""
    agreement = replace(before, contract=contract)
    # a confirmed order is that of the policy before
    before.mapping.check_change(before.contract, contract)
    return agreement


def check_policy(asked: str, contract: PolicyContract, policy_names: Iterable[str]) -> None:
    """Compare the policy that the client names; nothing is loaded by that name."""
    names = list(dict.fromkeys(contract.policy.split('|')))
    served = {*names, *contract.fingerprint.split('|'), contract.policy}
    accepted = {asked, ANY_POLICY} & {*filter(None, policy_names)}
    if accepted or any(is_name_of(asked, policy) for policy in served):
        return
    raise invalid(
        f'the client asks for the policy {asked[:200]!r}, and {" or ".join(names)} is served; the '
        f'gateway loads nothing that a client names: set --pretrained_name_or_path='
        f'{names[0]}, or add the name to lerobot.policy_names'
    )


def is_name_of(asked: str, policy: str) -> bool:
    """Return whether a path or hub id names a policy: act_so101/checkpoints/020000/... too."""
    parts = [part for part in asked.split('/') if part]
    if parts[-1:] == [CHECKPOINT_FOLDER]:
        run, step = parts[-4:-3], parts[-2:-1]
        if not run:
            return policy in step
        begin = f'{run[0]}-'
        # `last` is a link that only the server resolves
        return policy.startswith(begin) and step[0] in ('last', policy.removeprefix(begin))
    return policy in (asked, *parts[-1:])


def check_chunk(asked: int, steps: int) -> None:
    if asked < 1:
        raise invalid(f'actions_per_chunk must be at least 1, got {asked}')
    if steps and asked > steps:
        raise invalid(
            f'actions_per_chunk is {asked}, and the policy predicts {steps} actions; set '
            f'--actions_per_chunk to at most {steps}'
        )


def check_inputs(
    names: tuple[str, ...],
    cameras: tuple[str, ...],
    contract: PolicyContract,
    mapping: NameMapping,
) -> None:
    """Map an example, so that a name without a partner is refused before the robot moves."""
    mapping.check(contract)
    if len(set(names)) < len(names):
        raise invalid('the client announces a state name twice')
    if not mapping.state:
        mapping.state_vector(dict.fromkeys(names, 0.0), contract)
    mapping.images({name: np.zeros((1, 1, 3), np.uint8) for name in cameras}, contract)


def as_image(name: str, value: object) -> Uint8Array:
    if not isinstance(value, np.ndarray):
        raise invalid(f'the camera {name} is not an image')
    return value
