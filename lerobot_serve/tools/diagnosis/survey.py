# SPDX-License-Identifier: Apache-2.0
"""First pass over all runs: clients, time spans and the stalls of one robot. One thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lerobot_serve.tools.traces.stalls import Stall, StallDetector
from lerobot_serve.tools.traces.trace_run import TraceRun

CLIENTS_KEPT = 1000


@dataclass(slots=True)
class Survey:
    """
    Result of the first pass.

    edges           runs of edges with records of the client; `others` all other runs
    begin_s, end_s  period of the client's edges; without one, of all runs with its records
    stall_count     stalls of the client, `stalled_s` their total; `stalls` has the longest
    clients         all clients with records
    """

    edges: list[TraceRun] = field(default_factory=list)
    others: list[TraceRun] = field(default_factory=list)
    begin_s: float = 0.0
    end_s: float = 0.0
    stall_count: int = 0
    stalled_s: float = 0.0
    stalls: list[Stall] = field(default_factory=list)
    clients: set[str] = field(default_factory=set)
    is_found: bool = False

    @property
    def longest_stall(self) -> Stall | None:
        return max(self.stalls, key=lambda stall: stall.length_s, default=None)


def survey(runs: Sequence[TraceRun], client: str) -> Survey:
    """Read all runs for a client. Raises TraceError."""
    found = Survey()
    spans: list[tuple[float, float]] = []
    edge_spans: list[tuple[float, float]] = []
    for run in runs:
        playing = StallDetector(with_holds=True)
        times = _read(run, client, playing, found.clients)
        is_edge = run.role == 'edge' and times is not None
        (found.edges if is_edge else found.others).append(run)
        if times:
            (edge_spans if is_edge else spans).append(times)
        if is_edge:
            playing.finish()
            found.stall_count += playing.count
            found.stalled_s += playing.total_s
            found.stalls += playing.longest
    found.stalls.sort(key=lambda stall: stall.begin_s)
    found.is_found = bool(spans or edge_spans)
    if found.is_found:
        begins, ends = zip(*(edge_spans or spans), strict=True)
        found.begin_s, found.end_s = min(begins), max(ends)
    return found


def _read(
    run: TraceRun, client: str, playing: StallDetector, clients: set[str]
) -> tuple[float, float] | None:
    """Return first and last time of the client in a run, None without a record."""
    times: tuple[float, float] | None = None
    for time_s, _, record in run.read():
        name = record.client_id
        if name == client:
            first_s, last_s = times or (time_s, time_s)
            times = min(first_s, time_s), max(last_s, time_s)
            playing.add_record(time_s, record)
        elif name and len(clients) < CLIENTS_KEPT:
            clients.add(name)
    if times:
        clients.add(client)
    return times
