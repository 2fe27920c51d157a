# SPDX-License-Identifier: Apache-2.0
"""
What becomes of the requests of a site whose routers, servers, store and links fail again and
again.

Two routers with a shared state, four servers and a PostgreSQL in one network, four simulated
robots with their edge controllers in another: half of them over ROS 2, half over Zenoh. Parts are
killed, stand still or are cut off at random moments, some two at once, while an operator changes
the split, drains a slot, and starts and aborts rollouts. In the end a program that shares no code
with the package (`check`) judges the traces and what two witnesses saw on the wire: no request
without a known end, and no episode where an operator did not want it.
"""

from __future__ import annotations

import json
from pathlib import Path
import shutil
import subprocess
import sys
import tempfile

from benchmarks.network_emulation.link import LinkUnavailable
from benchmarks.results.report import Case
from benchmarks.site import check, postgres
from benchmarks.site.fault_fleet import fault_fleet
from benchmarks.site.fault_layout import ATTEMPT_S, RATE_HZ, ROBOTS
from benchmarks.site.faults import (
    AWAY_S,
    fail_often,
    LONG_QUIET_S,
    PAIRED_SHARE,
    QUIET_S,
)
from benchmarks.site.operator import PAUSE_S, running_operator
from lerobot_serve.errors import UserError

ABOUT = 'what becomes of requests while routers, servers, the store and links of a site fail'
# 200 faults in the usual 200 rounds
FAULTS_A_ROUND = 1.0
PARAMETERS = {
    'robots': len(ROBOTS),
    'robots_over_zenoh': len(ROBOTS) // 2,
    'rate_of_the_arms_hz': RATE_HZ,
    'longest_attempt_s': ATTEMPT_S,
    'part_is_away_s': AWAY_S,
    'until_the_next_fault_s': QUIET_S,
    'and_before_each_eighth_s': LONG_QUIET_S,
    'share_of_pairs': PAIRED_SHARE,
    'operator_pauses_s': PAUSE_S,
    'request_is_explained_until_s_after_a_fault': check.AFTER_S,
}
NAME = 'faults of a site'


def measure(rounds: int, folder: Path, *, seed: int = 1, kills: int | None = None) -> list[Case]:
    """
    Let so many parts fail, `kills` unless that is None, and return what the checker found. Main
    thread. Raises UserError.
    """
    if not postgres.is_installed():
        return [Case(NAME, {'not_measured': postgres.MISSING})]
    count = kills or max(1, round(rounds * FAULTS_A_ROUND))
    # a path of a socket is bounded
    scratch = Path(tempfile.mkdtemp(prefix='site_faults_', dir='/tmp'))
    run = scratch / 'run'
    try:
        with (
            fault_fleet(run) as fleet,
            running_operator(fleet, seed, run / 'operator.jsonl'),
        ):
            fail_often(fleet, count, seed, run / 'faults.jsonl')
        found = judge(run)
    except LinkUnavailable as reason:
        return [Case(NAME, {'not_measured': str(reason)})]
    except UserError as error:
        raise UserError(f'{error}; {kept(run, folder, seed)}') from error
    else:
        if any(found['violations'].values()):
            print(kept(run, folder, seed), flush=True)
        return [case_of(found, seed, count)]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def kept(run: Path, folder: Path, seed: int) -> str:
    """Copy what is needed to see what went wrong, and return where it is."""
    copy = folder / f'site_faults_{seed}'
    shutil.rmtree(copy, ignore_errors=True)
    if run.exists():
        shutil.copytree(run, copy)
    return f'logs and traces are kept in {copy}'


def judge(run: Path) -> check.Record:
    """Run the checker as the program that it is. Raises UserError."""
    command = [sys.executable, '-I', str(Path(check.__file__)), str(run)]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise UserError(f'the checker has failed: {done.stderr.strip()}') from None


def case_of(found: check.Record, seed: int, faults: int) -> Case:
    """Return the case of a run; what is violated is printed, too."""
    for rule, texts in found['violations'].items():
        for text in texts[:10]:
            print(f'  {rule}: {text}', flush=True)
    goals = {f'{rule}: {MEANINGS[rule]}': not texts for rule, texts in found['violations'].items()}
    counts = {f'violations_of_{rule}': len(texts) for rule, texts in found['violations'].items()}
    return Case(
        NAME,
        {'seed': seed, 'faults': faults},
        {**dict(sorted(found['counts'].items())), **counts},
        found['series_ms'],
        goals=goals,
    )


MEANINGS = {
    'ended': 'each request has one end that its robot counted',
    'proven': 'each reply was seen by a witness, a router or a server',
    'explained': 'a request is lost only at a fault',
    'flagged': 'no policy changes within an episode without POLICY_CHANGED',
    'placed': 'both routers hold an episode in one slot',
    'one_split': 'a version of the split is the same at both routers',
    'obeyed': 'a second after a command has succeeded, no router places an episode against it',
    'led': 'each step of a rollout is taken once',
    'safe': 'each command is finite, and young enough',
    'recovered': 'all robots go on after each fault',
    'whole': 'traces can be read but for the last lines of killed processes',
}
