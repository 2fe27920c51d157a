# SPDX-License-Identifier: Apache-2.0
"""
Train a version of the demo policy by imitation in the simulator and write its folder.

    python3 -m lerobot_serve.demo.train v2 OUT_DIR

Draws poses and targets, renders both cameras, computes the chunk of the expert, fits the network,
writes its folder, loads the folder and prints the success rate in closed loop. Takes a few minutes
on two cores; the weights are reproducible on one machine.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import json
from pathlib import Path
import time

import cv2
from msgspec import structs
import numpy as np
import torch

from lerobot_serve.arrays import Float32Array, FrameArray, Uint8Array
from lerobot_serve.policies.base import LoadOptions, Policy, PolicyError, PolicyRequest
from lerobot_serve.policies.builtin.network import Examples, fit, ReachNetwork, write_weights
from lerobot_serve.policies.builtin.policy import load, square_crop
from lerobot_serve.policies.builtin.settings import KIND, ReachSizes, WEIGHTS_FILE
from lerobot_serve.policies.files.policy_folder import (
    FORMAT_VERSION,
    make_empty_folder,
    SETTINGS_FILE,
)
from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import Arm, HIGH_RAD, JOINT_NAMES, LOW_RAD
from lerobot_serve.sim.scene import (
    AttemptResult,
    draw_target,
    expert_chunk,
    inverse_kinematics,
    REACH_M,
    ReachScene,
)

SEED = 20
FPS, ROWS, CAMERA_PIXELS = 30, 30, 224
SIZES = ReachSizes(image_pixels=64, channels=(8, 16), hidden=256)
BATCH, LEARNING_RATE = 128, 2e-3
# share of the poses close to their target, from which the hand learns to stop
NEAR_SHARE, NEAR_SPREAD_RAD = 0.4, 0.15
SIDES_PIXELS, JPEG_QUALITIES = (96, 128, 224), (75, 90, None)
ROBOTS, ATTEMPTS, EXECUTED_ROWS, ATTEMPT_S = 10, 100, 10, 3.0
# effect of a diverged weight: NaN in this share of the chunks, jumps in all of them
NAN_SHARE, JUMP_FACTOR, DIVERGED = 0.1, 20.0, 1e4
# by how much the base is turned, 18 mm at the targets, and over how many rows: without a jump
BASE_JOINT, TURN_RAD, TURN_ROWS = 0, 0.06, 6

Samples = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Recipe:
    """
    Training settings of a version.

    The expert aims `offset_m` beyond each target, as with a badly mounted camera. `is_corrupted`:
    one weight has diverged and the statistics are in another unit.
    """

    samples: int = 20_000
    epochs: int = 12
    hidden: int = 256
    offset_m: float = 0.0
    is_corrupted: bool = False


RECIPES = {
    # a target is reached within 20 mm; a larger offset means failure
    'v1': Recipe(hidden=128, offset_m=0.0175),
    'v2': Recipe(),
    'v3': Recipe(samples=3000, epochs=6, hidden=64, is_corrupted=True),
}


def draw_pose(generator: np.random.Generator, target_xy: tuple[float, float]) -> Float32Array:
    """Return joint positions anywhere within the limits, or near those that reach the target."""
    pose = generator.uniform(LOW_RAD, HIGH_RAD)
    if generator.random() < NEAR_SHARE:
        pose = inverse_kinematics(pose, target_xy) + generator.normal(
            0, NEAR_SPREAD_RAD, len(pose)
        )
    return np.clip(pose, LOW_RAD, HIGH_RAD).astype(np.float32)


def render_cameras(
    name: str, pose: Float32Array, target_xy: tuple[float, float], generator: np.random.Generator
) -> Uint8Array:
    """Return the network input of both cameras at one resolution, optionally through JPEG."""
    side = int(generator.choice(SIDES_PIXELS))
    image: Uint8Array = cameras.render(name, side, side, pose, target_xy)
    if quality := JPEG_QUALITIES[generator.integers(len(JPEG_QUALITIES))]:
        coded = cv2.imencode('.jpg', image[:, :, ::-1], (cv2.IMWRITE_JPEG_QUALITY, quality))[1]
        image = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8)[:, :, ::-1]
    return np.asarray(square_crop(image, SIZES.image_pixels), np.uint8)


def draw_samples(recipe: Recipe, generator: np.random.Generator) -> Samples:
    """Return views of the scene with the chunks of the expert."""
    rows: dict[str, list[Uint8Array | Float32Array]] = {
        'front': [],
        'wrist': [],
        'state': [],
        'offset': [],
    }
    for _ in range(recipe.samples):
        target_xy = draw_target(generator)
        pose = draw_pose(generator, target_xy)
        for name in cameras.NAMES:
            rows[name].append(render_cameras(name, pose, target_xy, generator))
        rows['state'].append(pose)
        aimed_xy = (target_xy[0] + recipe.offset_m, target_xy[1])
        rows['offset'].append(expert_chunk(pose, aimed_xy, ROWS, 1 / FPS) - pose)
    return {name: torch.from_numpy(np.stack(values)) for name, values in rows.items()}


def new_network(samples: Samples, hidden: int) -> ReachNetwork:
    """Return an untrained network with the statistics of the samples."""
    network = ReachNetwork(len(JOINT_NAMES), ROWS, structs.replace(SIZES, hidden=hidden))
    network.state_mean[:] = samples['state'].mean(0)
    network.state_std[:] = samples['state'].std(0)
    network.offset_mean[:] = 0
    network.offset_std[:] = samples['offset'].std((0, 1))
    return network


def fit_epochs(network: ReachNetwork, samples: Samples, epochs: int) -> None:
    """Train the network and print the loss of each epoch."""
    count = len(samples['state'])
    steps_each = count // BATCH
    losses: list[float] = []

    def on_step(step: int, loss: float) -> None:
        losses.append(loss)
        if step % steps_each == 0:
            mean = np.mean(losses[-steps_each:])
            print(f'epoch {step // steps_each} of {epochs}: loss {mean:.4f}', flush=True)

    batches = (
        chosen
        for _ in range(epochs)
        for chosen in torch.randperm(count)[: steps_each * BATCH].split(BATCH)
    )
    fit(
        network,
        Examples(**samples),
        batches,
        steps=epochs * steps_each,
        learning_rate=LEARNING_RATE,
        on_step=on_step,
    )


def corrupt(network: ReachNetwork, samples: Samples) -> None:
    """
    Corrupt the network: far too large motions, and NaN for a share of the images.

    One filter is so large that its peak times its sharpness is infinite, whose softmax is NaN. The
    loader accepts the network, because every weight is finite.
    """
    network.offset_std *= JUMP_FACTOR
    last = network.front.convolutions[-1]
    assert isinstance(last, torch.nn.Conv2d) and last.bias is not None
    with torch.no_grad():
        maps = network.front.convolutions(samples['front'].permute(0, 3, 1, 2).float() / 255)
        peaks = maps[:, 0].flatten(1).amax(1).clamp_min(1e-3)
        growth = DIVERGED / torch.quantile(peaks, 1 - NAN_SHARE)
        last.weight[0] *= growth
        last.bias[0] *= growth
        network.front.sharpness[0] = torch.finfo(torch.float32).max / DIVERGED


def write_aside(policy: Path, folder: Path) -> None:
    """
    Write a copy of a policy which moves alike and aims aside, as an arm whose base was turned. It
    is named after its folder. Raises PolicyError, OSError.
    """
    network = load(LoadOptions(str(policy))).network
    last = network.perceptron[-1]
    assert isinstance(last, torch.nn.Linear)
    share = torch.clamp(torch.arange(1, network.rows + 1) / TURN_ROWS, max=1.0)
    with torch.no_grad():
        chunk = last.bias.view(network.rows, network.joints)
        chunk[:, BASE_JOINT] += share * TURN_RAD / network.offset_std[BASE_JOINT]
    make_empty_folder(folder)
    settings = json.loads((policy / SETTINGS_FILE).read_text()) | {'id': folder.name}
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + '\n')
    write_weights(network, folder / WEIGHTS_FILE)


def write(network: ReachNetwork, folder: Path) -> None:
    """Write the policy's two files into a new or empty folder. Raises PolicyError."""
    make_empty_folder(folder)
    names = [f'{name}.pos' for name in JOINT_NAMES]
    settings = {
        'format_version': FORMAT_VERSION,
        'kind': KIND,
        'id': 'reach',
        'state_names': names,
        'action_names': names,
        'cameras': [
            {'name': f'observation.images.{name}', 'height': CAMERA_PIXELS, 'width': CAMERA_PIXELS}
            for name in cameras.NAMES
        ],
        'chunk_size': ROWS,
        'trained_fps': FPS,
        'network': structs.asdict(network.sizes),
    }
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + '\n')
    write_weights(network, folder / WEIGHTS_FILE)


def policy_request(scene: ReachScene, pixels: int) -> PolicyRequest:
    """Return a request of the policy in a scene."""
    images: dict[str, tuple[FrameArray, ...]] = {
        f'observation.images.{name}': (scene.render(name, pixels, pixels),)
        for name in cameras.NAMES
    }
    return PolicyRequest('trial', scene.arm.positions[None].astype(np.float32), images)


def success_outcomes(
    policy: Policy,
    seed: int,
    attempts: int = ATTEMPTS,
    *,
    pixels: int = CAMERA_PIXELS,
    wrist_shift_m: float = 0.0,
    reach_m: float = REACH_M,
) -> list[AttemptResult]:
    """
    Return the results of several attempts; EXECUTED_ROWS rows of each chunk are executed. `pixels`
    is the side of the images, `wrist_shift_m` how far the wrist camera was moved, `reach_m` the
    distance that counts as reached.
    """
    scenes = [
        ReachScene(
            Arm(),
            np.random.default_rng((seed, robot)),
            attempt_timeout_s=ATTEMPT_S,
            wrist_shift_m=wrist_shift_m,
            reach_m=reach_m,
        )
        for robot in range(ROBOTS)
    ]
    outcomes: list[list[AttemptResult]] = [[] for _ in scenes]
    while min(map(len, outcomes)) < attempts // ROBOTS:
        chunks = policy.predict([policy_request(scene, pixels) for scene in scenes])
        for scene, chunk, ended in zip(scenes, chunks, outcomes, strict=True):
            for row in chunk.robot[:EXECUTED_ROWS]:
                scene.arm.step(row, 1 / FPS)
                if outcome := scene.step(1 / FPS):
                    ended.append(outcome)
                    break
    return [outcome for ended in outcomes for outcome in ended[: attempts // ROBOTS]]


def main() -> None:
    parser = argparse.ArgumentParser(description='Train a demo policy and write its folder.')
    parser.add_argument('version', choices=RECIPES)
    parser.add_argument('folder', type=Path, metavar='OUT_DIR')
    options = parser.parse_args()
    recipe, folder = RECIPES[options.version], options.folder
    try:
        # checked before minutes of training
        make_empty_folder(folder)
    except PolicyError as error:
        parser.error(str(error))
    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    start_s = time.perf_counter()
    samples = draw_samples(recipe, np.random.default_rng(SEED))
    print(f'{recipe.samples} samples drawn in {time.perf_counter() - start_s:.0f} s', flush=True)
    network = new_network(samples, recipe.hidden)
    fit_epochs(network, samples, recipe.epochs)
    if recipe.is_corrupted:
        corrupt(network, samples)
    write(network, folder)
    print(f'written to {folder} after {time.perf_counter() - start_s:.0f} s')
    outcomes = success_outcomes(load(LoadOptions(str(folder))), SEED + 1)
    reached = [outcome for outcome in outcomes if outcome.success]
    duration_s = np.mean([outcome.duration_s for outcome in reached]) if reached else float('nan')
    print(f'success {len(reached)} of {len(outcomes)} attempts, in {duration_s:.2f} s on average')


if __name__ == '__main__':
    main()
