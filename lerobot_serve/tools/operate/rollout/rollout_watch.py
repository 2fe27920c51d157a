# SPDX-License-Identifier: Apache-2.0
"""
Shows a rollout and the learners live: redrawn on a terminal, elsewhere a line for each change.

The main thread; the client waits for the next state.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lerobot_serve.contract.records import ShadowSummary
from lerobot_serve.tools.operate import learners
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.operate.learners import LearnerView
from lerobot_serve.tools.operate.operations import read_settings
from lerobot_serve.tools.operate.rollout import rollout_view
from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.output.text import json_text, without_controls

if TYPE_CHECKING:
    from lerobot_serve.tools.operate.fleet_client import FleetClient

DECISIONS_SHOWN, DRAW_EVERY_S = 8, 1.0
# of the changes, on a terminal that has no room for all of the view
LEAST_ROWS = 4
# a router publishes its state every second
SILENT_S = 3.0


class RolloutWatch:
    """See the module."""

    def __init__(
        self,
        client: FleetClient,
        router: RouterView,
        *,
        as_json: bool = False,
        console: Console | None = None,
    ) -> None:
        self._client, self._last, self._as_json = client, router, as_json
        self._settings = read_settings(client, router.name)
        self._console = console or Console(highlight=False)
        # decisions of before, from the trace of the router, and changes since; any thread adds
        self.past: list[str] = []
        self.decisions: list[str] = []
        self._is_silent = False
        self._learners: list[LearnerView] = []

    def run(self, seconds: float | None = None) -> None:
        """Watch for this time, or until Ctrl-C."""
        end_s = None if seconds is None else time.monotonic() + seconds
        is_live = self._console.is_terminal and not self._as_json
        with Live(console=self._console, auto_refresh=False) as live:
            if not is_live:
                live.stop()
                self._print_line(self._state_line())
            try:
                while end_s is None or time.monotonic() < end_s:
                    if is_live:
                        live.update(self._screen(), refresh=True)
                    left_s = DRAW_EVERY_S if end_s is None else end_s - time.monotonic()
                    for line in self.poll(min(DRAW_EVERY_S, max(0.0, left_s))):
                        if not is_live:
                            self._print_line(line)
            except KeyboardInterrupt:
                return

    def _screen(self) -> Text:
        """Return what fits on the terminal: the age of the state first, the newest change last."""
        view, changes = self._view_text(self._shadow()), '\n'.join(self._change_lines())
        head, tail = (self._rows(text) for text in (f'{self._age_text()}\n{view}', changes))
        tail = tail[-max(LEAST_ROWS, self._console.height - len(head)) :]
        return Text('\n').join([*head[: self._console.height - len(tail)], *tail])

    def _rows(self, text: str) -> list[Text]:
        """Return a text as rows of the terminal."""
        return list(Text(text).wrap(self._console, self._console.width))

    def _age_text(self) -> str:
        age_s = self._last.age_s
        why = f': {self._last.name} was killed or hangs' if age_s > SILENT_S else ''
        return without_controls(f'state is {age_s:.0f} s old{why}; Ctrl-C ends')

    def poll(self, limit_s: float) -> list[str]:
        """Wait for a change, at most so long, and return what has changed, one line each."""
        before = self._last
        found = self._client.wait_for_router(
            before.name, lambda now: bool(rollout_view.changes(before, now)), limit_s
        )
        now = found or self._client.last_router(before.name) or before
        self._last = now
        added = []
        if found:
            self._settings = read_settings(self._client, now.name)
            added.append(f'{"; ".join(rollout_view.changes(before, now))}. {now.canary.text}')
        if (now.age_s > SILENT_S) is not self._is_silent:
            self._is_silent = not self._is_silent
            added.append(
                f'{now.name} has published no state for {now.age_s:.0f} s: it was killed or hangs'
                if self._is_silent
                else f'{now.name} publishes its state again'
            )
        added += self._poll_learners()
        lines = [f'{time.strftime("%H:%M:%S")} {text}' for text in added]
        self.decisions += lines
        return lines

    def _poll_learners(self) -> list[str]:
        """Take the newest states of the learners, and return what has changed."""
        before, self._learners = self._learners, self._client.last_learners()
        return learners.changes(before, self._learners)

    def text(self, shadow: ShadowSummary | None = None, shown: int = DECISIONS_SHOWN) -> str:
        """Return the view and the newest changes."""
        return '\n'.join([self._view_text(shadow), *self._change_lines(shown)])

    def _view_text(self, shadow: ShadowSummary | None) -> str:
        return f'{self._report(shadow).as_text()}\n'

    def _report(self, shadow: ShadowSummary | None) -> Report:
        return rollout_view.rollout_report(self._last, self._settings, shadow, self._learners)

    def _change_lines(self, shown: int = DECISIONS_SHOWN) -> list[str]:
        """Return the newest changes, and as many decisions of before as leave `shown`."""
        latest = list(map(without_controls, self.decisions[-shown:]))
        left = shown - len(latest)
        past = list(map(without_controls, self.past[-left:] if left > 0 else []))
        before = ['last decisions, by the trace of the router:', *past] if past else []
        return [*before, 'changes since this began:', *latest]

    def _shadow(self) -> ShadowSummary | None:
        """Return what the shadow has shown, which a rollout may wait for; without a wait."""
        return self._client.shadow(self._last.name, 0.0) if self._settings.shadow_server else None

    def _print_line(self, line: str) -> None:
        if self._as_json:
            line = json_text({'change': line, **self._report(self._shadow()).data})
        print(line if self._as_json else without_controls(line), flush=True)

    def _state_line(self) -> str:
        now = self._last
        return f'{time.strftime("%H:%M:%S")} {now.name}: {now.canary.text}'
