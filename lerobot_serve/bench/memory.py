"""Does the server grow? The memory of its process over 100,000 requests of 16 robots."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.harness.camera_images import camera_images
from benchmarks.harness.nodes import memory_mb, serve
from benchmarks.results.report import Case

ABOUT = 'memory of the server over many requests'
SESSIONS, REQUESTS, PERIOD_S, PIXELS = 16, 100_000, 5.0, 64
JOINTS = tuple(f'joint_{i}.pos' for i in range(6))
PARAMETERS = {
    'policy': 'recurrent, so that hidden state is kept for each session',
    'cameras': f'1 x {PIXELS}x{PIXELS} JPEG',
    'sessions': SESSIONS,
    'requests': REQUESTS,
}
GOAL_MB = 5.0


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the one case. Main thread. Raises UserError."""
    parameters = {
        'policy_kind': 'recurrent',
        'policy_path': f'joints=6,chunk=50,cameras=front:{PIXELS}x{PIXELS},fps=30',
        'max_sessions': SESSIONS,
    }
    name = 'observation.images.front'
    frames = {name: camera_images(PIXELS, PIXELS)[name]}
    with serve(parameters, folder) as served:
        answered, readings = 0, []
        while answered < REQUESTS:
            # sessions come and go too
            served.swarm.open(SESSIONS, frames, JOINTS)
            served.swarm.run(PERIOD_S)
            answered += sum(len(robot.latencies_ms) for robot in served.swarm.robots.values())
            served.swarm.close()
            readings.append((answered, memory_mb(served.server.pid)))
    requests, megabytes = zip(*readings, strict=True)
    # what is built once at the beginning is no growth
    half = len(requests) // 2
    slope_mb = float(np.polyfit(requests[half:], megabytes[half:], 1)[0] * REQUESTS)
    return [
        Case(
            f'{answered} requests',
            parameters={
                'first_mb': round(megabytes[0], 1),
                'middle_mb': round(megabytes[half], 1),
                'last_mb': round(megabytes[-1], 1),
                'growth_mb_per_100k': round(slope_mb, 2),
            },
            goals={f'grows by less than {GOAL_MB:g} MB in 100,000 requests': slope_mb < GOAL_MB},
        )
    ]
