# SPDX-License-Identifier: Apache-2.0
"""
Faults of a site: a router, a server, the store or a link is killed, stands still or is cut, at
random moments and for random times. Main thread.

Each fault is a line of the file `faults.jsonl`, with its begin and its end on the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
import json
from pathlib import Path
import random
import signal
import time

from benchmarks.site.fault_fleet import CUT, FaultFleet, WHOLE
from benchmarks.site.fault_layout import LINKS, ROUTERS, SERVERS, STORE

# how long a part is away, and how long all is well before the next fault; now and then it is well
# for longer: what is lost then is not explained
AWAY_S, QUIET_S, LONG_QUIET_S = (0.3, 4.0), (0.5, 2.0), 12.0
# actions of a policy that every robot plays after a fault: it continues
ACTIONS_AFTER = 15
# of all faults, so many come with a second one of another part
PAIRED_SHARE = 0.2
LONG_QUIET_EVERY = 8


class Part(StrEnum):
    """
    What fails. `LINK` is that between robots and site, the other two are links of one router.
    """

    ROUTER = 'router'
    SERVER = 'server'
    STORE = 'store'
    LINK = 'link'
    STORE_LINK = 'link to the store'
    SERVER_LINK = 'link to a server'


class How(StrEnum):
    """`KILLED`: SIGKILL, and started again; `STOPPED`: SIGSTOP; `CUT`: nothing passes."""

    KILLED = 'killed'
    STOPPED = 'stopped'
    CUT = 'cut'


KINDS = (
    (Part.ROUTER, How.KILLED),
    (Part.ROUTER, How.STOPPED),
    (Part.SERVER, How.KILLED),
    (Part.SERVER, How.STOPPED),
    (Part.STORE, How.KILLED),
    (Part.STORE, How.STOPPED),
    (Part.LINK, How.CUT),
    (Part.STORE_LINK, How.CUT),
    (Part.SERVER_LINK, How.CUT),
)
NAMES = {
    Part.ROUTER: sorted(ROUTERS),
    Part.SERVER: sorted(SERVERS),
    Part.STORE_LINK: sorted(name for name, (_, end, _) in LINKS.items() if end == STORE),
    Part.SERVER_LINK: sorted(name for name, (_, end, _) in LINKS.items() if end != STORE),
}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault; `name` is the process, where there are several."""

    part: Part
    how: How
    name: str
    away_s: float

    def begin(self, fleet: FaultFleet) -> None:
        self._turn(fleet, is_well=False)

    def end(self, fleet: FaultFleet) -> None:
        self._turn(fleet, is_well=True)

    def _turn(self, fleet: FaultFleet, *, is_well: bool) -> None:
        store = fleet.store
        if self.part is Part.LINK:
            fleet.link.change(WHOLE if is_well else CUT)
        elif self.part is Part.STORE and self.how is How.KILLED:
            store.start() if is_well else store.kill()
        elif self.part is Part.STORE:
            store.resume() if is_well else store.pause()
        elif self.how is How.KILLED:
            fleet.start(self.name) if is_well else fleet.kill(self.name)
        else:
            fleet.signal(self.name, signal.SIGCONT if is_well else signal.SIGSTOP)


@dataclass(slots=True)
class FaultResult:
    """What a fault was, when, and whether all robots played again after it."""

    part: str
    how: str
    name: str
    began_ns: int
    ended_ns: int = 0
    recovered_ns: int = 0
    has_recovered: bool = False


def planned(count: int, draw: random.Random) -> Iterator[list[PlannedFault]]:
    """Yield so many faults, some in pairs: all kinds before the first one comes again."""
    kinds: list[tuple[Part, How]] = []
    while count > 0:
        kinds = kinds or draw.sample(KINDS, len(KINDS))
        chosen = [kinds.pop()]
        if count > 1 and draw.random() < PAIRED_SHARE:
            others = [kind for kind in KINDS if kind[0] is not chosen[0][0]]
            chosen.append(draw.choice(others))
        yield [plan(part, how, draw) for part, how in chosen]
        count -= len(chosen)


def plan(part: Part, how: How, draw: random.Random) -> PlannedFault:
    name = draw.choice(NAMES.get(part, [part.value]))
    return PlannedFault(part, how, name, draw.uniform(*AWAY_S))


def fail_often(fleet: FaultFleet, count: int, seed: int, file: Path) -> list[FaultResult]:
    """Let so many parts fail. Raises UserError."""
    draw, results = random.Random(seed), []
    with file.open('w') as log:
        for number, faults in enumerate(planned(count, draw)):
            time.sleep(draw.uniform(*QUIET_S))
            if number % LONG_QUIET_EVERY == 0:
                time.sleep(LONG_QUIET_S)
            found = fail(fleet, faults)
            results += found
            for result in found:
                print(json.dumps(asdict(result)), file=log, flush=True)
            print(f'{len(results)} of {count}: {text(found)}', flush=True)
    return results


def fail(fleet: FaultFleet, faults: list[PlannedFault]) -> list[FaultResult]:
    """Let parts fail at one moment, each for its time; wait until all robots play."""
    results = []
    for fault in faults:
        results.append(FaultResult(fault.part, fault.how, fault.name, time.monotonic_ns()))
        fault.begin(fleet)
    begun_s = time.monotonic()
    for number in sorted(range(len(faults)), key=lambda each: faults[each].away_s):
        time.sleep(max(0.0, faults[number].away_s - (time.monotonic() - begun_s)))
        faults[number].end(fleet)
        results[number].ended_ns = time.monotonic_ns()
    has_recovered = fleet.wait_for_play(ACTIONS_AFTER)
    for result in results:
        result.has_recovered, result.recovered_ns = has_recovered, time.monotonic_ns()
    return results


def text(found: list[FaultResult]) -> str:
    faults = ' and '.join(f'{each.name} {each.how}' for each in found)
    away_s = max(each.ended_ns - each.began_ns for each in found) / 1e9
    after_s = (found[0].recovered_ns - max(each.ended_ns for each in found)) / 1e9
    rest = '' if found[0].has_recovered else ', NOT ALL PLAY'
    return f'{faults} for {away_s:.1f} s, all play {after_s:.1f} s later{rest}'
