# SPDX-License-Identifier: Apache-2.0
"""
Shows the demo while it runs: the view of `rollout watch` with the robots and the command that runs
on a terminal, lines elsewhere. The main thread; only reads the scoreboard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
import io
import re
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from lerobot_serve.contract.records import ShadowSummary
from lerobot_serve.demo.child_processes import TOKEN
from lerobot_serve.demo.results.scoreboard import DemoEvent, named, Scoreboard
from lerobot_serve.demo.tour.link import TypedCommand
from lerobot_serve.tools.operate import robots as fleet_table
from lerobot_serve.tools.output.text import format_local

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.rollout.rollout_watch import RolloutWatch

# a frame takes 20 ms to draw
LINE_EVERY_S, DRAW_EVERY_S = 5.0, 0.5
EVENTS_SHOWN, CHANGES_SHOWN, OUTPUT_SHOWN, PICTURE_COLUMNS = 4, 3, 7, 118
# lines of a frame without the output of the command, which is shortened on a lower terminal; a
# very low one shows the act that runs instead of all
OTHER_LINES, LOW_TERMINAL = 40, 36
FONTS = re.compile(r'@font-face \{.*?\}\s*', re.DOTALL)
STYLES = {
    'green': ('STREAMING', 'HEALTHY', 'READY', 'promoted'),
    'yellow': ('DEGRADED', 'RECONNECTING', 'UNHEALTHY', 'DRAINED', 'PROBING', 'UNQUALIFIED'),
    'red': ('DEAD', 'UNAVAILABLE', 'BARRED', 'POLICY_MISMATCH', 'rolled back'),
}


class Screen:
    """
    Use as a context manager; `refresh` redraws at a limited rate. `heading` are lines that stay,
    `watch` is set once the router is found.
    """

    def __init__(
        self,
        board: Scoreboard,
        claims: Mapping[str, str],
        heading: Iterable[str] = (),
        console: Console | None = None,
    ) -> None:
        self._board, self._claims = board, claims
        self.heading = list(heading)
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._marks = dict.fromkeys(claims, '  ')
        self.commands: list[TypedCommand] = []
        self.watch: RolloutWatch | None = None
        self.shadow: ShadowSummary | None = None
        self._drawn_s = 0.0
        self._printed_events = 0
        # of each command, in their order
        self._printed_lines: list[int] = []

    def __enter__(self) -> Screen:
        # above the frame, which goes at the end
        self._print(*self.heading)
        if self._console.is_terminal:
            self._live.start()
            self.refresh()
        else:
            # the first line of the state comes later
            self._drawn_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def add_heading(self, line: str) -> None:
        """Add a line that stays."""
        self.heading.append(line)
        self._console.print(line, markup=False, soft_wrap=True)

    def mark_act(self, act: str, mark: str) -> None:
        """Show that an act has started, has proved its claim, or has failed."""
        self._marks[act] = mark
        self.refresh()
        if self._console.is_terminal:
            self._live.update(self._view(), refresh=True)
        elif mark == '->':
            self._print('', f'-> {self._act_text(act)}')

    def add_command(self, command: TypedCommand) -> None:
        """Show a command before it runs."""
        self.refresh()
        self.commands.append(command)
        self._printed_lines.append(0)
        if self._console.is_terminal:
            self._drawn_s = 0.0
            self.refresh()
        else:
            self._print(*command_lines(command, 0))

    def refresh(self) -> None:
        """Draw the frame, or print what is new."""
        now_s = time.monotonic()
        changes = self.watch.poll(0.0) if self.watch else []
        if self._console.is_terminal:
            if now_s - self._drawn_s >= DRAW_EVERY_S:
                self._drawn_s = now_s
                self._live.update(self._view(), refresh=True)
            return
        self._print_outputs()
        events = self._board.events
        self._print(*map(event_line, events[self._printed_events :]))
        self._printed_events = len(events)
        self._print(*(f'   {line}' for line in changes))
        if now_s - self._drawn_s >= LINE_EVERY_S:
            self._drawn_s = now_s
            self._print(f'   {status_line(self._board)}')

    def _print_outputs(self) -> None:
        """Print what the commands have printed since the last call."""
        for number, command in enumerate(self.commands):
            new = command.lines[self._printed_lines[number] :]
            self._printed_lines[number] += len(new)
            self._print(*(f'   | {line}' for line in new))

    def _print(self, *lines: str) -> None:
        for line in lines:
            print(line, file=self._console.file, flush=True)

    def picture(self) -> str:
        """Return the current view as SVG."""
        console = Console(record=True, file=io.StringIO(), width=PICTURE_COLUMNS)
        console.print(self._view(is_picture=True))
        # no reference to fonts on the web: the picture must be self-contained
        return FONTS.sub('', console.export_svg(title='lerobot-serve demo'))

    def _view(self, *, is_picture: bool = False) -> Group:
        """Return the view; a picture shows whole lines, a terminal cuts long ones."""
        with self._board.lock:
            latest = self._board.events[-EVENTS_SHOWN:]
            robots = list(self._board.robots.values())
        rollout = (
            self.watch.text(self.shadow, CHANGES_SHOWN) if self.watch else 'the router is starting'
        )
        height = OUTPUT_SHOWN if is_picture else self._console.height - OTHER_LINES
        shown = max(2, min(OUTPUT_SHOWN, height))
        command = command_lines(self.commands[-1], shown) if self.commands else []
        heading = [TOKEN.sub('', each) for each in self.heading] if is_picture else self.heading
        is_low = not is_picture and self._console.height < LOW_TERMINAL
        acts = [line for line in self._act_lines() if not is_low or line.startswith('->')]
        parts = {
            'lerobot_serve demo': [*heading, *acts],
            'command': command,
            'lerobot-serve rollout watch': rollout.split('\n'),
            'lerobot-serve robots': fleet_table.robots_report(robots).as_text().split('\n'),
            'events': [event_line(each).strip() for each in latest],
        }
        return Group(*(panel(title, lines, is_picture) for title, lines in parts.items()))

    def _act_lines(self) -> list[str]:
        return [f'{self._marks[act]} {self._act_text(act)}' for act in self._claims]

    def _act_text(self, act: str) -> str:
        number = list(self._claims).index(act) + 1
        return f'act {number} of {len(self._claims)}, {act}: {self._claims[act]}'


def panel(title: str, lines: Iterable[str], is_picture: bool) -> Panel:
    """Return lines with a frame; known states are coloured."""
    # a long line of a terminal must not push others out of the frame
    text = Text(
        '\n'.join(lines), no_wrap=not is_picture, overflow='fold' if is_picture else 'ellipsis'
    )
    for style, words in STYLES.items():
        text.highlight_words(words, style)
    text.highlight_regex(r'(?m)^\$ .*$', 'bold cyan')
    text.highlight_regex(r'(?m)^ok', 'green')
    text.highlight_regex(r'(?m)^!!', 'red')
    return Panel(text, title=title, title_align='left')


def command_lines(command: TypedCommand, shown: int) -> list[str]:
    """Return a command with its remark, and the last lines of its output."""
    remark = [f'# {command.remark}'] if command.remark else []
    output = command.lines[-shown:] if shown else []
    left_out = len(command.lines) - len(output)
    cut = [f'({left_out} lines above)'] if shown and left_out else []
    return [*remark, f'$ {command.text}', *cut, *output]


def status_line(board: Scoreboard) -> str:
    """Return the state in one line, for output without a terminal."""
    rates = ', '.join(
        f'{version or "?"} {good}/{of}'
        for version, (good, of) in sorted(named(board.successes()).items())
    )
    stalls = sum(robot.edge.stalls for robot in board.robots.values())
    executed = sum(robot.edge.actions_executed for robot in board.robots.values())
    return f'targets reached: {rates or "none"}; {executed} actions executed, {stalls} stalls'


def event_line(event: DemoEvent) -> str:
    return f'   {format_local(event.time_s, to="seconds")} {event.text}'
