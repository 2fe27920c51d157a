# SPDX-License-Identifier: Apache-2.0
"""
The conversion of bags into a dataset: its speed, and kills at random instants.

Each conversion is a process of `lerobot-serve dataset`, its start included. Bags are of the
simulated arm with two cameras of 480x640, images raw or as JPEG. For the kills, conversions of a
small bag get SIGKILL at random instants of their duration until the kills are used up; after each,
the next start of the same command continues. A dataset counts once frames and rows are equal in
all videos, by decoding them.
"""

from __future__ import annotations

from pathlib import Path
import random
import shutil
import signal
import subprocess
import time

from benchmarks.recording.example_bag import EdgeBag, Step
from benchmarks.results.report import Case
from lerobot_serve.tools.dataset.checking import check_dataset
from lerobot_serve.tools.dataset.records import Existing

BAG_BYTES, EPISODE_STEPS = 1_000_000_000, 150
KILLS, KILLED_EPISODES, KILLED_STEPS, SEED = 100, 4, 40, 1
SMALL = (120, 160)
LARGE = (480, 640)
GOAL_S_PER_GB = 300.0
ABOUT = 'conversion of bags into a dataset'
PARAMETERS = {'bag_bytes': BAG_BYTES, 'kills': KILLS, 'seed': SEED}


def measure(rounds: int, folder: Path) -> list[Case]:
    """
    Return the cases: raw images, JPEG, and kills; `rounds` has no effect. Main thread. Raises
    CalledProcessError.
    """
    speeds = [measure_speed(folder, BAG_BYTES, compressed=packed) for packed in (False, True)]
    return [*speeds, measure_kills(folder, KILLS)]


def measure_speed(folder: Path, bag_bytes: int, *, compressed: bool) -> Case:
    """Convert one bag."""
    name = 'jpeg' if compressed else 'raw'
    bag = write_bag(folder / name, LARGE, bag_bytes=bag_bytes, compressed=compressed)
    size_gb = sum(file.stat().st_size for file in bag.iterdir()) / 1e9
    begin_s = time.monotonic()
    subprocess.run(command(bag, folder / f'{name}_out'), check=True, capture_output=True)
    took_s = time.monotonic() - begin_s
    rows = Existing.read(folder / f'{name}_out').rows
    shutil.rmtree(bag)
    shutil.rmtree(folder / f'{name}_out')
    rate = took_s / size_gb
    return Case(
        f'two cameras of 480x640, {name}',
        {'bag_gb': round(size_gb, 3), 'gb_per_minute': round(60 / rate, 2)},
        {'rows': rows},
        {'conversion of one GB': [1000 * rate]},
        {},
        {f'at most {GOAL_S_PER_GB:g} s for each GB': rate <= GOAL_S_PER_GB},
    )


def measure_kills(folder: Path, kills: int) -> Case:
    """Kill conversions at random instants; finish and check each dataset."""
    bag = write_bag(folder / 'killed', SMALL, episodes=KILLED_EPISODES, steps=KILLED_STEPS)
    draw, out = random.Random(SEED), folder / 'killed_out'
    whole_s = _undisturbed_s(bag, folder / 'undisturbed')
    done = faults = killed = 0
    while killed < kills:
        process = subprocess.Popen(
            command(bag, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(draw.uniform(0, whole_s))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
        if out.exists() and not out.with_name(f'{out.name}.staging').exists():
            done, faults = done + 1, faults + _faults(out)
            shutil.rmtree(out)
    # what the last kill left
    if not out.exists() or out.with_name(f'{out.name}.staging').exists():
        subprocess.run([*command(bag, out), '--append'], check=True, capture_output=True)
        done, faults = done + 1, faults + _faults(out)
    return Case(
        'conversions killed',
        {'episodes': KILLED_EPISODES, 'rows': KILLED_EPISODES * KILLED_STEPS},
        {'kills': killed, 'datasets': done, 'datasets with a fault': faults},
        {},
        {},
        {'frames = rows in all datasets': faults == 0 and done > 0},
    )


def _undisturbed_s(bag: Path, out: Path) -> float:
    begin_s = time.monotonic()
    subprocess.run(command(bag, out), check=True, capture_output=True)
    shutil.rmtree(out)
    return time.monotonic() - begin_s


def _faults(out: Path) -> int:
    """Return 1 for a dataset that is not whole."""
    there = Existing.read(out)
    whole = (there.rows, there.episodes) == (KILLED_EPISODES * KILLED_STEPS, KILLED_EPISODES)
    return int(bool(check_dataset(out, decode=True)) or not whole)


def command(bag: Path, out: Path) -> list[str]:
    return ['lerobot-serve', 'dataset', str(bag), str(out)]


def write_bag(
    folder: Path,
    size: tuple[int, int],
    *,
    bag_bytes: int = 0,
    episodes: int = 1,
    steps: int = EPISODE_STEPS,
    compressed: bool = False,
) -> Path:
    """Write a bag of so many episodes, or more until it has `bag_bytes`."""

    def change(step: Step) -> None:
        step.compressed = compressed

    bag, number = EdgeBag(folder, size=size), 0
    while number < episodes or bag.writer.size_bytes < bag_bytes:
        x_m, y_m = 0.22 + 0.02 * (number % 4), 0.1 - 0.05 * (number % 5)
        bag.episode(f'e{number}', steps, target_xy=(x_m, y_m), change=change)
        number += 1
    return bag.close()
