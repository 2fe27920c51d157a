# SPDX-License-Identifier: Apache-2.0
"""Both loops under one script: what is played and what is left must be the same bytes."""

from __future__ import annotations

from pathlib import Path

from support.rtc_parity.local_loop import LocalLoop, Reanchor
from support.rtc_parity.remote_loop import RemoteLoop
from support.rtc_parity.scene import CHUNK_ROWS, scripted_observation
from support.rtc_parity.script import random_script, Script, ScriptedRequest

TURNS = 4


class Different(AssertionError):
    """The loops are not equal; the text says at which script, turn and moment."""


class Parity:
    """One policy in both loops. Built and used by one thread."""

    def __init__(self, folder: Path, reanchor: Reanchor | None = None) -> None:
        """Load the policy twice: as it is served, and as LeRobot loads it. Raises PolicyError."""
        self.remote, self.local = RemoteLoop(folder), LocalLoop(folder, reanchor)
        self.rows_played = self.guided = 0

    def run(self, number: int) -> Script:
        """Run the script of this number. Raises Different."""
        script = random_script(number, turns=TURNS, chunk_rows=CHUNK_ROWS)
        self.remote.begin(script.horizon, script.rule, number)
        self.local.begin(script.horizon, script.rule)
        for place, turn in enumerate(script.turns):
            self._turn(turn, f'script {number} ({script.rule}), turn {place}', number, place)
        self._play(CHUNK_ROWS, f'script {number}, the end')
        return script

    def _turn(self, turn: ScriptedRequest, where: str, number: int, place: int) -> None:
        self._play(turn.rows_before, f'{where}: before the request')
        now = scripted_observation(number, place)
        request, asked = self.remote.ask(now), self.local.ask(now)
        self.guided += asked.left is not None and len(asked.left) > 0
        self._play(turn.rows_meanwhile, f'{where}: while it is answered')
        seed, latency_s = self.remote.answer(request, turn.latency_s)
        self.local.answer(asked, latency_s, seed)
        self._compare(self.remote.left(), self.local.left(), f'{where}: merged')

    def _play(self, rows: int, where: str) -> None:
        for _ in range(rows):
            row = self.remote.play()
            self._compare(row, self.local.play(), where)
            self.rows_played += row is not None

    def _compare(self, remote: object, local: object, where: str) -> None:
        if remote != local:
            raise Different(
                f'{where}: the remote loop has {remote!r:.200}, LeRobot {local!r:.200}'
            )

    def close(self) -> None:
        """End the image threads."""
        self.remote.close()
