"""
Train the demo policy by imitation in the simulator and write its folder.

    python3 -m lerobot_serve.bench.train_reach OUT_DIR

Draws poses and targets, renders both cameras, asks the expert, fits the network, writes its
folder, loads that back and prints the success rate in closed loop. A few minutes on two cores; on
one machine the weights are the same each time.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import time

import cv2
import numpy as np
from safetensors.torch import save_file
import torch

from lerobot_serve.policies.base import Loading, Policy, PolicyRequest
from lerobot_serve.policies.builtin.network import ReachNetwork, Sizes
from lerobot_serve.policies.builtin.policy import load, small, WEIGHTS_FILE
from lerobot_serve.policies.builtin.settings import KIND
from lerobot_serve.policies.settings import FORMAT_VERSION, SETTINGS_FILE
from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import Arm, HIGH_RAD, JOINT_NAMES, LOW_RAD
from lerobot_serve.sim.expert import expert_chunk, solve
from lerobot_serve.sim.scene import draw_target, Outcome, Scene

SEED = 20
FPS, ROWS, CAMERA_PIXELS = 30, 30, 224
SIZES = Sizes(len(JOINT_NAMES), ROWS, image_pixels=64, channels=(8, 16), hidden=256)
SAMPLES, BATCH, EPOCHS, LEARNING_RATE = 20_000, 128, 12, 2e-3
# so many of the poses are close to their target, where the hand must learn to stop
NEAR_SHARE, NEAR_SPREAD_RAD = 0.4, 0.15
SIDES_PIXELS, JPEG_QUALITIES = (96, 128, 224), (75, 90, None)
ROBOTS, ATTEMPTS, EXECUTED_ROWS = 10, 100, 10

Samples = dict[str, torch.Tensor]


def draw_pose(generator: np.random.Generator, target_xy: tuple[float, float]) -> np.ndarray:
    """Return joint positions anywhere within the limits, or near those that reach the target."""
    pose = generator.uniform(LOW_RAD, HIGH_RAD)
    if generator.random() < NEAR_SHARE:
        pose = solve(pose, target_xy) + generator.normal(0, NEAR_SPREAD_RAD, len(pose))
    return np.clip(pose, LOW_RAD, HIGH_RAD).astype(np.float32)


def photograph(
    name: str, pose: np.ndarray, target_xy: tuple[float, float], generator: np.random.Generator
) -> np.ndarray:
    """Return what the network is shown of a camera of some resolution, through JPEG or not."""
    side = int(generator.choice(SIDES_PIXELS))
    image = cameras.render(name, side, side, pose, target_xy)
    if quality := generator.choice(JPEG_QUALITIES):
        coded = cv2.imencode('.jpg', image[:, :, ::-1], (cv2.IMWRITE_JPEG_QUALITY, quality))[1]
        image = cv2.imdecode(coded, cv2.IMREAD_COLOR)[:, :, ::-1]
    return small(image, SIZES.image_pixels)


def draw_samples(count: int, generator: np.random.Generator) -> Samples:
    """Return `count` views of the scene with what the expert would do."""
    rows: dict[str, list[np.ndarray]] = {'front': [], 'wrist': [], 'state': [], 'offset': []}
    for _ in range(count):
        target_xy = draw_target(generator)
        pose = draw_pose(generator, target_xy)
        for name in cameras.NAMES:
            rows[name].append(photograph(name, pose, target_xy, generator))
        rows['state'].append(pose)
        rows['offset'].append(expert_chunk(pose, target_xy, ROWS, 1 / FPS) - pose)
    return {name: torch.from_numpy(np.stack(values)) for name, values in rows.items()}


def new_network(samples: Samples) -> ReachNetwork:
    """Return an untrained network with the statistics of the samples."""
    network = ReachNetwork(SIZES)
    network.state_mean[:] = samples['state'].mean(0)
    network.state_std[:] = samples['state'].std(0)
    network.offset_mean[:] = 0
    network.offset_std[:] = samples['offset'].std((0, 1))
    return network


def fit(network: ReachNetwork, samples: Samples) -> None:
    """Train the network, saying how far it is."""
    count = len(samples['state'])
    wanted = (samples['offset'] - network.offset_mean) / network.offset_std
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=1e-4)
    steps = EPOCHS * (count // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    for epoch in range(EPOCHS):
        losses = []
        for chosen in torch.randperm(count)[: count // BATCH * BATCH].split(BATCH):
            chunk = network(*(samples[name][chosen] for name in ('front', 'wrist', 'state')))
            loss = torch.nn.functional.smooth_l1_loss(chunk, wanted[chosen], beta=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f'epoch {epoch + 1} of {EPOCHS}: loss {np.mean(losses):.4f}', flush=True)


def write(network: ReachNetwork, folder: Path) -> None:
    """Write the policy's two files."""
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
        'network': {
            'image_pixels': SIZES.image_pixels,
            'channels': SIZES.channels,
            'hidden': SIZES.hidden,
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=2) + '\n')
    save_file(network.state_dict(), folder / WEIGHTS_FILE)
    # save_file makes it readable to its owner alone
    (folder / WEIGHTS_FILE).chmod(0o644)


def observe(scene: Scene) -> PolicyRequest:
    """Return what the policy is asked in a scene."""
    images = {
        f'observation.images.{name}': (scene.render(name, CAMERA_PIXELS, CAMERA_PIXELS),)
        for name in cameras.NAMES
    }
    return PolicyRequest('trial', scene.arm.positions[None].astype(np.float32), images)


def try_out(policy: Policy, seed: int, attempts: int = ATTEMPTS) -> list[Outcome]:
    """Return how the attempts of several robots end; each asks anew after EXECUTED_ROWS rows."""
    scenes = [Scene(Arm(), np.random.default_rng((seed, robot))) for robot in range(ROBOTS)]
    outcomes: list[list[Outcome]] = [[] for _ in scenes]
    while min(map(len, outcomes)) < attempts // ROBOTS:
        chunks = policy.predict([observe(scene) for scene in scenes])
        for scene, chunk, ended in zip(scenes, chunks, outcomes, strict=True):
            for row in chunk.robot[:EXECUTED_ROWS]:
                scene.arm.step(row, 1 / FPS)
                if outcome := scene.step(1 / FPS):
                    ended.append(outcome)
                    break
    return [outcome for ended in outcomes for outcome in ended[: attempts // ROBOTS]]


def main() -> None:
    parser = argparse.ArgumentParser(description='Train the demo policy and write its folder.')
    parser.add_argument('folder', type=Path, metavar='OUT_DIR')
    folder = parser.parse_args().folder
    torch.set_num_threads(2)
    torch.manual_seed(SEED)
    start_s = time.perf_counter()
    samples = draw_samples(SAMPLES, np.random.default_rng(SEED))
    print(f'{SAMPLES} samples drawn in {time.perf_counter() - start_s:.0f} s', flush=True)
    network = new_network(samples)
    fit(network, samples)
    write(network, folder)
    print(f'written to {folder} after {time.perf_counter() - start_s:.0f} s')
    outcomes = try_out(load(Loading(str(folder))), SEED + 1)
    reached = [outcome for outcome in outcomes if outcome.success]
    duration_s = np.mean([outcome.duration_s for outcome in reached]) if reached else float('nan')
    print(f'success {len(reached)} of {len(outcomes)} attempts, in {duration_s:.2f} s on average')


if __name__ == '__main__':
    main()
