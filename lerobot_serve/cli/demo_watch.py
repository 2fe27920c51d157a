"""The observer of the demo: listens to what any operator could listen to, and sums it up."""

from __future__ import annotations

from pathlib import Path
import threading

import numpy as np
from rclpy.node import Node

from lerobot_serve.ros import qos
from lerobot_serve.ros.runtime import Runtime
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction, ServerStatus

STATES = {
    EdgeState.CONNECTING: 'CONNECTING',
    EdgeState.STREAMING: 'STREAMING',
    EdgeState.DEGRADED: 'DEGRADED',
    EdgeState.STALLED: 'STALLED',
    EdgeState.RECONNECTING: 'RECONNECTING',
    EdgeState.DEAD: 'DEAD',
}


class Watch(Node):
    """Callbacks run in the executor thread and store; the main thread reads."""

    def __init__(self, runtime: Runtime, *, server: str, robot: str) -> None:
        super().__init__('demo', context=runtime.context)
        self.news = threading.Event()
        self.edge = EdgeState()
        self.status = ServerStatus()
        self.outcomes: list[EpisodeOutcome] = []
        self.ages_ms: list[float] = []
        self.trips_ms: dict[int, float] = {}
        edge = f'{robot}/edge_controller'
        self.create_subscription(EdgeState, f'{edge}/state', self._on_edge, qos.STATE)
        self.create_subscription(
            ExecutedAction, f'{edge}/executed_action', self._on_executed, qos.EXECUTED_ACTION
        )
        self.create_subscription(ServerStatus, f'{server}/status', self._on_status, qos.STATE)
        self.create_subscription(
            EpisodeOutcome, f'{robot}/episode_outcome', self.outcomes.append, qos.OUTCOME
        )

    @property
    def executed(self) -> int:
        return len(self.ages_ms)

    def _on_edge(self, message: EdgeState) -> None:
        self.edge = message
        if message.chunks_accepted:
            self.trips_ms[message.chunks_accepted] = message.round_trip_ms
        self.news.set()

    def _on_executed(self, message: ExecutedAction) -> None:
        # a rung of the ladder plays nothing that was ever seen
        if message.rung == EdgeState.RUNG_PLAY:
            self.ages_ms.append(1e3 * message.age_s)

    def _on_status(self, message: ServerStatus) -> None:
        self.status = message

    def line(self) -> str:
        """Return one line on the present."""
        good = sum(o.outcome == EpisodeOutcome.SUCCESS for o in self.outcomes)
        edge = self.edge
        return (
            f'{STATES.get(edge.state, "?"):<12} {edge.actions_executed:5d} actions  '
            f'round trip {edge.round_trip_ms:5.1f} ms  to play {edge.queue_remaining_s:4.2f} s  '
            f'targets {good}/{len(self.outcomes)}'
        )

    def why_not(self) -> str:
        """Return what is known of a robot that does not move."""
        state = STATES.get(self.edge.state, 'nothing heard of the edge controller')
        return f'{state} {self.edge.reason}'.strip()

    def summary(self) -> dict:
        """Return every figure of the run."""
        edge, status = self.edge, self.status
        counters = (
            'ticks',
            'ticks_missed',
            'actions_executed',
            'requests_sent',
            'chunks_accepted',
            'stalls',
            'cage_trips',
        )
        good = sum(outcome.outcome == EpisodeOutcome.SUCCESS for outcome in self.outcomes)
        return {
            'policy': status.policy,
            'episodes': len(self.outcomes),
            'successes': good,
            'edge': {name: getattr(edge, name) for name in counters},
            'action_age_ms': spread(self.ages_ms),
            'round_trip_ms': spread(list(self.trips_ms.values())),
            'inference_ms_p50': round(status.inference_ms_p50, 3),
            'drops': {d.reason: d.count for d in [*edge.drops, *status.drops]},
            'edge_has_torch': holds_torch('edge_controller'),
        }


def spread(values: list[float]) -> dict[str, float]:
    """Return count, median, p99 and maximum."""
    if not values:
        return {'count': 0, 'p50': 0.0, 'p99': 0.0, 'max': 0.0}
    p50, p99 = np.percentile(values, [50, 99])
    return {
        'count': len(values),
        'p50': round(float(p50), 3),
        'p99': round(float(p99), 3),
        'max': round(max(values), 3),
    }


def holds_torch(executable: str) -> bool:
    """Tell whether a running process of that executable has torch in its memory map."""
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            if f'/{executable}\0' in (folder / 'cmdline').read_text():
                return 'libtorch' in (folder / 'maps').read_text()
        except OSError:
            continue
    return False
