# SPDX-License-Identifier: Apache-2.0
"""
Shows the demo while it runs: a live view on a terminal, lines elsewhere.

The main thread; only reads the scoreboard.
"""

from __future__ import annotations

from collections.abc import Mapping
import io
import re
import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lerobot_serve.demo.scoreboard import Scoreboard, version_of

LINE_EVERY_S, DRAW_EVERY_S = 5.0, 0.25
EVENTS_SHOWN, PICTURE_COLUMNS = 8, 110
FONTS = re.compile(r'@font-face \{.*?\}\s*', re.DOTALL)
COLOURS = {'STREAMING': 'green', 'HEALTHY': 'green', 'READY': 'green', 'promoted': 'green'}
COLOURS |= dict.fromkeys(('DEGRADED', 'RECONNECTING', 'UNHEALTHY', 'DRAINED', 'PROBING'), 'yellow')
COLOURS |= dict.fromkeys(
    ('STALLED', 'DEAD', 'UNAVAILABLE', 'BARRED', 'POLICY_MISMATCH', 'rolled back'), 'red'
)


class Screen:
    """Use as a context manager; `refresh` redraws at a limited rate."""

    def __init__(
        self, board: Scoreboard, claims: Mapping[str, str], console: Console | None = None
    ) -> None:
        self._board, self._claims = board, claims
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._marks = dict.fromkeys(claims, '  ')
        self._drawn_s = 0.0
        self._printed_events = 0

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def mark_phase(self, phase: str, mark: str) -> None:
        """Show that a phase has started, has proved its claim, or has failed."""
        self._marks[phase] = mark
        if not self._console.is_terminal and mark == '->':
            print(f'-> {self._claims[phase]}', flush=True)
        self._drawn_s = 0.0
        self.refresh()

    def refresh(self) -> None:
        now_s = time.monotonic()
        if self._console.is_terminal:
            if now_s - self._drawn_s >= DRAW_EVERY_S:
                self._drawn_s = now_s
                self._live.update(self._view(), refresh=True)
            return
        events = self._board.events
        for event in events[self._printed_events :]:
            print(f'   {local_time_text(event.time_s)} {event.text}', flush=True)
        self._printed_events = len(events)
        if now_s - self._drawn_s >= LINE_EVERY_S:
            self._drawn_s = now_s
            print(f'   {status_line(self._board)}', flush=True)

    def picture(self) -> str:
        """Return the current view as SVG."""
        console = Console(record=True, file=io.StringIO(), width=PICTURE_COLUMNS)
        console.print(self._view(is_picture=True))
        # no reference to fonts on the web: the picture must be self-contained
        return FONTS.sub('', console.export_svg(title='lerobot-serve demo'))

    def _view(self, *, is_picture: bool = False) -> Group:
        """Return the view; a picture shows the whole text of each event."""
        with self._board.lock:
            latest = self._board.events[-EVENTS_SHOWN:]
        phase_lines = Text(
            '\n'.join(f'{self._marks[name]} {claim}' for name, claim in self._claims.items())
        )
        event_lines = Text(
            '\n'.join(f'{local_time_text(each.time_s)} {each.text}' for each in latest),
            # in the live view a long event must not push others out of the panel
            no_wrap=not is_picture,
            overflow='fold' if is_picture else 'ellipsis',
        )
        return Group(
            Panel(phase_lines, title='lerobot_serve demo', title_align='left'),
            robots_table(self._board),
            slots_table(self._board),
            Panel(candidate_text(self._board), title='rollout', title_align='left'),
            Panel(
                event_lines,
                title='events',
                title_align='left',
                height=None if is_picture else EVENTS_SHOWN + 2,
            ),
        )


def robots_table(board: Scoreboard) -> Table:
    """Return a row for each robot."""
    table = Table(expand=True, title='robots', title_justify='left')
    for head in (
        'robot',
        'state',
        'policy',
        'to play',
        'round trip',
        'executed',
        'stalls',
        'cage',
    ):
        table.add_column(head, no_wrap=True)
    for name, robot in board.robots.items():
        table.add_row(
            name,
            coloured(robot.state),
            version_of(robot.policy) or '-',
            f'{robot.queue_s:.2f} s',
            f'{robot.round_trip_ms:.0f} ms',
            str(robot.executed),
            str(robot.stalls),
            str(robot.cage_trips),
        )
    return table


def slots_table(board: Scoreboard) -> Table:
    """Return a row for each slot."""
    table = Table(expand=True, title='policies', title_justify='left')
    for head in ('slot', 'policy', 'state', 'new episodes', 'success', 'servers'):
        table.add_column(head, no_wrap=True)
    rates = {version_of(policy): rate for policy, rate in board.successes().items()}
    for name, slot in board.slots.items():
        good, of = rates.get(version_of(slot.policy), (0, 0))
        servers = ', '.join(f'{n.split("/")[1]} {r.state}' for n, r in slot.replicas.items())
        table.add_row(
            name,
            version_of(slot.policy) or '-',
            coloured(slot.state),
            f'{slot.share_percent} %',
            f'{good} of {of}',
            servers,
        )
    return table


def candidate_text(board: Scoreboard) -> Text:
    """Return the state of the shadow and of the canary."""
    shadow, canary = board.shadow, board.canary
    state = canary.state.replace('_', ' ')
    return Text.assemble(
        f'shadow {version_of(shadow.policy) or "-"}: {shadow.samples} requests compared, '
        f'{shadow.divergence:.3f} rad apart\n',
        f'canary {version_of(canary.candidate) or "-"}: ',
        coloured(state),
        f'; {canary.reason}' if canary.reason else '',
    )


def status_line(board: Scoreboard) -> str:
    """Return the state in one line, for output without a terminal."""
    robots = ' '.join(robot.state.lower() for robot in board.robots.values())
    rates = ', '.join(
        f'{version_of(policy) or "?"} {good}/{of}'
        for policy, (good, of) in sorted(board.successes().items())
    )
    share = board.shares[-1][1] if board.shares else 0.0
    canary = board.canary.state.replace('_', ' ')
    return (
        f'robots {robots}; targets reached: {rates or "none"}; slot b {share:.0f} %, '
        f'canary {canary}'
    )


def coloured(state: str) -> Text:
    return Text(state, style=COLOURS.get(state, ''))


def local_time_text(time_s: float) -> str:
    return time.strftime('%H:%M:%S', time.localtime(time_s))
