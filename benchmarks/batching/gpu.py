# SPDX-License-Identifier: Apache-2.0
"""
What a GPU makes of policies of real size: one request after the other, and in batches of up to 64.

Random weights cost as much as trained ones. One server for each policy, whose scheduler is changed
live; every robot asks again as soon as it was answered. Left out where torch sees no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
import tempfile

import torch

from benchmarks.batching import cpu as batching
from benchmarks.harness.camera_images import camera_images
from benchmarks.harness.nodes import serve
from benchmarks.policies import random_lerobot, small_act
from benchmarks.results.report import Case
from lerobot_serve.policies.lerobot.compat import lerobot

ABOUT = 'chunks a second of ACT and of a policy of the size of SmolVLA on a GPU, batch 1 to 64'
DEVICE = 'cuda:0'
HEIGHT, WIDTH = 480, 640
BATCHES = (1, 4, 16, 64)
PARAMETERS = {
    'device': DEVICE,
    'cameras': f'2 x {HEIGHT}x{WIDTH}, JPEG',
    'period_s': batching.PERIOD_S,
    'order': batching.PARAMETERS['order'],
}
Builder = Callable[[Path], Path]


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each policy and number of robots. Main thread. Raises UserError."""
    if not torch.cuda.is_available():
        why = 'torch sees no GPU here; TORCH=cuda installs the build for one'
        return [Case('left out', {'why': why})]
    turns = max(2, rounds // batching.ROUNDS_A_TURN)
    return [
        case
        for name, build in POLICIES.items()
        for case in measure_policy(name, build, turns, folder, DEVICE)
    ]


def measure_policy(name: str, build: Builder, turns: int, folder: Path, device: str) -> list[Case]:
    """Serve one policy to more and more robots. Raises UserError."""
    frames = camera_images(HEIGHT, WIDTH)
    with tempfile.TemporaryDirectory() as scratch:
        parameters = small_act.server_parameters(build(Path(scratch) / 'policy')) | {
            'device': device,
            'max_sessions': max(BATCHES),
            'max_batch_size': max(BATCHES),
        }
        with serve(parameters, folder) as swarm:
            return [
                batching.case(swarm, count, turns, frames, f'{name}, {count} robots')
                for count in BATCHES
            ]


def images() -> dict[str, tuple[int, int]]:
    return dict.fromkeys(camera_images(2, 2), (HEIGHT, WIDTH))


def build_act(folder: Path) -> Path:
    """Write an ACT as large as LeRobot makes it."""
    return small_act.build(folder, images(), {'pretrained_backbone_weights': None})


def build_smolvla(folder: Path) -> Path:
    """Write a SmolVLA with as many weights as that of LeRobot."""
    lerobot()
    from benchmarks.policies.smolvlm import build_vlm, SMOLVLM_500M

    return random_lerobot.build_policy(
        'smolvla',
        folder,
        images=images(),
        joints=len(small_act.JOINTS),
        settings={
            'vlm_model_name': str(build_vlm(folder / 'vlm', SMOLVLM_500M)),
            'load_vlm_weights': False,
        },
    )


POLICIES: dict[str, Builder] = {'ACT': build_act, 'SmolVLA': build_smolvla}
