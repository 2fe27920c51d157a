"""The whole: which window, what is told of it, and what the rules say. One thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lerobot_serve.trace.story.facts import Facts
from lerobot_serve.trace.story.moment import Moment, within
from lerobot_serve.trace.story.rules import judge, Says, Verdict
from lerobot_serve.trace.story.source import sources
from lerobot_serve.trace.story.survey import Survey, survey
from lerobot_serve.trace.story.window import gather

AROUND_S = 10.0


@dataclass(frozen=True, slots=True)
class Story:
    """`facts` is None where nothing is to be explained; `is_covered`: the traces tell of then."""

    client: str
    found: Survey
    is_covered: bool
    facts: Facts | None
    verdicts: tuple[Verdict, ...]
    asked_s: float | None

    @property
    def causes(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.says is Says.FOUND]


def explain(
    paths: Iterable[Path | str],
    client: str,
    *,
    at: Moment | None = None,
    around_s: float = AROUND_S,
) -> Story:
    """Return what the traces tell; without `at` of the longest stall. Raises TraceError."""
    found = survey(sources(paths), client)
    if not found.is_found or (at is None and found.worst is None):
        return Story(client, found, found.is_found, None, (), None)
    if at is None:
        begin_s, end_s = found.worst.begin_s, found.worst.end_s
    else:
        begin_s = within(at, found.begin_s, found.end_s)
        end_s = begin_s + at.length_s
    window = begin_s - around_s, end_s + around_s
    is_covered = window[0] <= found.end_s and found.begin_s <= window[1]
    asked_s = None if at is None else begin_s
    if not is_covered:
        return Story(client, found, False, None, (), asked_s)
    facts = gather(found, client, *window)
    return Story(client, found, True, facts, tuple(judge(facts)), asked_s)
