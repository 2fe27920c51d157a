# SPDX-License-Identifier: Apache-2.0
"""
What a policy takes and gives, found by loading it in a process of its own: the memory of a large
policy, and LeRobot, end with it.

    python3 -P -m lerobot_serve.learner.trainers.contract FOLDER DATASET

loads a policy with the names and the rate of a dataset, and prints its contract as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
import json
from pathlib import Path
import sys
from typing import Any

from lerobot_serve.child_process import empty_folder, python, reader_environment
from lerobot_serve.learner.trainers.base import TrainerError
from lerobot_serve.learner.trainers.guarded_process import GuardedProcess
from lerobot_serve.learner.trainers.recorded import RecordedInfo
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError
from lerobot_serve.policies.registry import detect_kind

MODULE = 'lerobot_serve.learner.trainers.contract'
FIELDS = (
    *('policy_type', 'state_names', 'action_names', 'cameras', 'chunk_size', 'trained_fps'),
    *('state_class', 'observation_steps', 'observation_stride_steps'),
)
MARK = 'contract: '
POLL_S = 0.2

Contract = dict[str, Any]
# of a policy's folder, with a dataset; see read_contract
ContractReader = Callable[[Path, Path, Callable[[], None]], Contract]


def contract_of(description: PolicyDescription) -> Contract:
    """Return the fields that a robot depends on, as JSON has them."""
    values = {name: getattr(description, name) for name in FIELDS}
    values['cameras'] = sorted(
        [camera.name, camera.height, camera.width, camera.channels]
        for camera in description.cameras
    )
    found: Contract = json.loads(json.dumps(values))
    return found


def differences(parent: Contract, result: Contract) -> list[str]:
    """Return how two contracts differ, one text for each field."""
    return [
        f'{name}: {parent[name]} before, {result[name]} after'
        for name in FIELDS
        if parent[name] != result[name]
    ]


def read_contract(folder: Path, dataset: Path, tick: Callable[[], None]) -> Contract:
    """
    Return the contract of the policy in a folder. `tick` is called while it loads; what it raises
    ends this. Raises TrainerError for a policy that cannot be loaded.
    """
    words = python('-m', MODULE, str(folder.absolute()), str(dataset.absolute()))
    printed = b''
    with (
        empty_folder() as place,
        GuardedProcess(words, folder=Path(place), environment=reader_environment()) as process,
    ):
        while (piece := process.read(POLL_S)) is not None:
            printed += piece
            tick()
        status = process.exit_status()
    lines = printed.decode(errors='replace').splitlines()
    found = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if status or not found:
        last = next((line for line in reversed(lines) if line.strip()), f'exit status {status}')
        raise TrainerError(f'{folder} is not a policy that can be served: {last}')
    value: Contract = json.loads(found[-1])
    return value


def main(folder: str, dataset: str) -> int:
    """Print the contract of a policy, or why it cannot be loaded; return the exit status."""
    from lerobot_serve.policies.registry import load

    try:
        info = RecordedInfo(Path(dataset))
        options = LoadOptions(
            path=folder,
            state_names=info.state_names,
            action_names=info.action_names,
            trained_fps=info.fps,
        )
        description = load(detect_kind(folder), options).describe()
    except (PolicyError, TrainerError) as error:
        print(error)
        return 1
    print(f'\n{MARK}{json.dumps(contract_of(description))}', flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
