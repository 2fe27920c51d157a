# SPDX-License-Identifier: Apache-2.0
"""
Round trips to a policy server that serves an ACT, and loads and warms up another one meanwhile.

One client asks again as soon as it is answered. The two policies differ in their random weights,
and the server swaps from one to the other and back. Main thread.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from functools import partial
import importlib.util
from pathlib import Path
import tempfile
import threading
import time

import numpy as np
from rclpy.node import Node

from benchmarks.harness.client import PolicyClient, SERVER
from benchmarks.harness.nodes import running, spinning
from benchmarks.harness.request_session import RequestSession
from benchmarks.policies import small_act
from benchmarks.results.report import Case
from lerobot_serve.contract.schema import Codec
from lerobot_serve.errors import UserError
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service
from lerobot_serve.telemetry.durations import percentile
from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import SwapPolicy

ABOUT = 'round trips while the server loads another policy, and after the switch'
ROUNDS_A_SWAP, LEAST_SWAPS = 20, 3
TRIPS_BEFORE, TRIPS_AFTER = 40, 20
LOAD_LIMIT_S = 120.0
# a machine that others use is slow; what comes later is lost
ANSWER_S = 20.0
MOST_RATIO = 1.5
PIXELS = small_act.PIXELS
# the network of LeRobot's ACT as it is by default, 52 million parameters
SETTINGS = {
    'chunk_size': small_act.CHUNK_ROWS,
    'n_action_steps': small_act.CHUNK_ROWS,
    'pretrained_backbone_weights': None,
}
PARAMETERS = {
    'policy': f'lerobot act, 52 M parameters, 1 x {PIXELS}x{PIXELS} raw',
    'trips_before_each': TRIPS_BEFORE,
}
BEFORE, DURING, AFTER = 'before', 'while the next one loads', 'after the switch'


class SwapWatch:
    """Asks for swaps and sees how they end; the executor deposits, the main thread reads."""

    def __init__(self, node: Node) -> None:
        self._client = node.create_client(SwapPolicy, f'{SERVER}/swap_policy')
        self._changed = threading.Event()
        self.status = ServerStatus()
        node.create_subscription(ServerStatus, f'{SERVER}/status', self._deposit, qos.STATE)

    def _deposit(self, status: ServerStatus) -> None:
        self.status = status
        self._changed.set()

    def begin(self, folder: str) -> None:
        """Begin a swap, and wait until the status shows it. Raises UserError."""
        reply = call_service(self._client, SwapPolicy.Request(policy_path=folder), LOAD_LIMIT_S)
        if not reply.accepted:
            raise UserError(f'{SERVER} {reply.text}')

    def is_loading(self, before: str) -> bool:
        """Return whether the earlier policy is served and the next one loads. Raises UserError."""
        if self.status.swap == ServerStatus.SWAP_FAILED:
            raise UserError(f'{SERVER}: {self.status.swap_text}')
        return self.status.policy == before

    def wait_until_done(self) -> None:
        """Wait until the earlier policy is freed. Raises UserError."""
        deadline = time.monotonic() + LOAD_LIMIT_S
        while self.status.swap != ServerStatus.SWAP_DONE:
            if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                raise UserError(f'{SERVER}: the swap has not ended: {self.status.swap_text}')
            self._changed.clear()


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return the case. Main thread. Raises UserError."""
    if importlib.util.find_spec('lerobot') is None:
        return [Case('not measured', {'why': 'LeRobot is not installed, which the policy needs'})]
    swaps = max(LEAST_SWAPS, rounds // ROUNDS_A_SWAP)
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        names = ('one', 'two')
        for seed, name in enumerate(names):
            small_act.build(root / name, settings=SETTINGS, seed=seed)
        build = partial(PolicyClient, answer_s=ANSWER_S, lifespan_s=ANSWER_S)
        client = stack.enter_context(spinning(build))
        watch = SwapWatch(client)
        parameters = small_act.server_parameters(root / names[0]) | {'policy_root': root}
        server = stack.enter_context(running(client, 'policy_server', SERVER, parameters, folder))
        frames = {small_act.CAMERAS[0]: np.zeros((PIXELS, PIXELS, 3), np.uint8)}
        session = RequestSession(client, frames, Codec.RAW)
        stack.callback(session.close)
        session.open(server)
        return [measure_swaps(session, watch, [names[(i + 1) % 2] for i in range(swaps)])]


def measure_swaps(session: RequestSession, watch: SwapWatch, folders: list[str]) -> Case:
    """Swap to each folder while the client goes on asking; return the case."""
    trips: dict[str, list[float]] = {BEFORE: [], DURING: [], AFTER: []}
    loading_ms: list[float] = []
    lost = 0

    def trip(phase: str) -> None:
        nonlocal lost
        found = session.trip()
        if found is None:
            lost += 1
        else:
            trips[phase].append(found.total_ms)

    repeat(TRIPS_AFTER, lambda: session.trip())
    for folder in folders:
        repeat(TRIPS_BEFORE, lambda: trip(BEFORE))
        before, begin_s = watch.status.policy, time.monotonic()
        watch.begin(folder)
        while watch.is_loading(before):
            trip(DURING)
        loading_ms.append(1e3 * (time.monotonic() - begin_s))
        repeat(TRIPS_AFTER, lambda: trip(AFTER))
        watch.wait_until_done()
    ratios = {
        f'{phase} to {BEFORE}': {
            f'p{percent}': round(
                (percentile(trips[phase], percent) or 0.0)
                / (percentile(trips[BEFORE], percent) or 1.0),
                3,
            )
            for percent in (50, 99)
        }
        for phase in (DURING, AFTER)
    }
    return Case(
        'round trips while another policy is loaded',
        {},
        {'swaps': len(folders), 'lost requests': lost},
        {**trips, 'load, warm-up and switch': loading_ms},
        ratios,
        {
            f'p99 while loading at most {MOST_RATIO} times that before': (
                ratios[f'{DURING} to {BEFORE}']['p99'] <= MOST_RATIO
            ),
            'no request is lost': lost == 0,
        },
    )


def repeat(count: int, action: Callable[[], object]) -> None:
    for _ in range(count):
        action()
