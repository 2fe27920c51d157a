# SPDX-License-Identifier: Apache-2.0
"""
The acts of learning: two rounds that reach more targets, a refused round, a version taken back.

The main thread; an act that does not complete raises UserError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.demo import steady_time
from lerobot_serve.demo.fleet_names import LEARNER, ROUTER
from lerobot_serve.demo.tour import learning_fleet
from lerobot_serve.demo.tour.act_context import ActContext
from lerobot_serve.demo.tour.fleet_files import POLICIES
from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.gate_record import ADMITTED, GateRecord, read_record, record_path
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.loop.decisions import TOO_FEW

START_S, GATHER_S, TRAIN_S, GATE_S, TRIAL_S, FINISH_S = 120.0, 600.0, 900.0, 600.0, 600.0, 300.0
# those that must end with a champion, and how many may be tried: a gate may refuse one
ROUNDS, MOST_ROUNDS = 2, 5
# of the round of wrong labels: how far the leader arms are off, and what no policy reaches alone
OFFSET_RAD, TINY_REACH_M = 1.5, 0.004
# wide targets, which a policy that aims 18 mm aside reaches as often as its parent
WIDE_REACH_M = 0.06
HEALTHY_S = 300.0
LONG_WATCH_EPISODES = 200
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """A round of the learner: its version, and when which part of it was over."""

    number: int
    version: str
    begun_s: float
    published_s: float


def learn(context: ActContext) -> Figures:
    """Correct the robots and learn from that; then lead them, and learn from that."""
    context.node.watch_learner()
    board, begun_s = context.board, steady_time.now_s()
    context.wait(
        lambda: all(robot.edge.chunks_accepted for robot in board.robots.values()),
        START_S,
        'all robots move',
    )
    context.run_verb('robots')
    rounds: list[Figures] = []
    for number in range(1, MOST_ROUNDS + 1):
        # one that reaches its targets is hardly ever corrected
        teaching = demonstrations(context) if rounds else corrections(context)
        made = make_round(context, number, teaching)
        if not is_taken_over(context, made.version):
            continue
        promoted_s = steady_time.now_s()
        await_champion(context, made.version)
        rounds.append(
            {
                'round': number,
                'version': made.version,
                'trained_s': round(made.published_s - made.begun_s, 1),
                'promoted_at_s': promoted_s,
                'champion_after_s': round(steady_time.now_s() - made.begun_s, 1),
            }
        )
        if len(rounds) == ROUNDS:
            break
    else:
        raise UserError(
            f'{len(rounds)} of {MOST_ROUNDS} rounds gave a champion, and {ROUNDS} must; see '
            f'{context.folder}/loop.log'
        )
    store = str(context.folder / learning_fleet.VERSIONS)
    context.run_verb('versions', 'list', '--store', store)
    run_history(context)
    # whether they reach more targets is in the traces
    return {
        'shown': True,
        'rounds': rounds,
        'took_s': round(steady_time.now_s() - begun_s, 1),
    }


def poison(context: ActContext) -> Figures:
    """Correct with leader arms whose wrists are turned, and refuse what was learned from it."""
    number, episodes = context.node.learner.round + 1, learning_fleet.POISONED_EPISODES
    made = make_round(context, number, wrong_corrections(context), episodes)
    record = gate_record(context, made.version)
    context.add_event(f'{made.version}: {record.verdict}: {record.text}', mark=record.verdict)
    run_history(context)
    episodes = episodes_with(context, made.version)
    return {
        'shown': record.verdict not in ADMITTED and episodes == 0,
        'version': made.version,
        'verdict': record.verdict,
        'why': record.text,
        'episodes': episodes,
    }


def regress(context: ActContext) -> Figures:
    """Promote a version that aims aside at wide targets, and narrow them afterwards."""
    # torch takes seconds
    from lerobot_serve.demo.train import write_aside

    champion = context.slot('a').policy
    # it gets worse meanwhile
    context.set_parameters(ROUTER, **{'canary.watch_episodes': LONG_WATCH_EPISODES})
    context.set_simulation(reach_m=WIDE_REACH_M)
    context.add_event(f'targets are wider: {1e3 * WIDE_REACH_M:.0f} mm count as reached')
    board = context.board
    count = len(board.ended_episodes) + learning_fleet.GATE_RECORDINGS
    context.wait(
        lambda: len(board.ended_episodes) >= count,
        HEALTHY_S,
        'the newest recordings are of these targets',
    )
    store = str(context.folder / learning_fleet.VERSIONS)
    folder = str(context.folder / POLICIES / learning_fleet.REGRESSING)
    write_aside(Path(store) / champion, Path(folder))
    context.run_verb(
        'versions',
        'publish',
        folder,
        '--store',
        store,
        '--parent',
        champion,
        remark='a version from elsewhere, which moves alike and aims 18 mm aside',
    )
    context.wait(
        lambda: context.router().canary.state in ON_TRIAL, GATE_S, 'the version is on trial'
    )
    version = context.slot('b').policy
    if not await_promotion(context, version):
        raise UserError(f'{version} is rolled back before its promotion')
    context.set_simulation(reach_m=learning_fleet.NARROW_REACH_M)
    narrowed_s = steady_time.now_s()
    context.add_event(f'targets are narrow: {1e3 * learning_fleet.NARROW_REACH_M:.0f} mm')
    back_s, later_s, why = context.wait_for_rollback(version)
    later = episodes_with(context, version, later_s)
    run_history(context)
    return {
        'shown': later == 0 and context.slot('a').policy == champion,
        'version': version,
        'why': why,
        'rolled_back_after_s': round(back_s - narrowed_s, 1),
        'episodes_with_it': episodes_with(context, version),
        'episodes_with_it_a_second_later': later,
        'learner_builds_on': context.node.learner.parent,
    }


@contextlib.contextmanager
def corrections(context: ActContext) -> Iterator[None]:
    """Let the person take over where a hand stops beside its target."""
    context.set_simulation(leader_corrects=True)
    context.add_event('the person takes over where a hand stops beside its target')
    yield
    context.set_simulation(leader_corrects=False)
    context.add_event('the person lets go')


@contextlib.contextmanager
def wrong_corrections(context: ActContext) -> Iterator[None]:
    """Let the person correct nearly each attempt, with leader arms that are not calibrated."""
    context.set_simulation(leader_offset_rad=OFFSET_RAD, reach_m=TINY_REACH_M)
    context.add_event(f'targets are tiny: {1e3 * TINY_REACH_M:.0f} mm')
    context.add_event(f'the wrists of the leader arms are turned by {OFFSET_RAD:g} rad')
    with corrections(context):
        yield
    context.set_simulation(leader_offset_rad=0.0, reach_m=learning_fleet.REACH_M)


@contextlib.contextmanager
def demonstrations(context: ActContext) -> Iterator[None]:
    """Let the person lead one robot through whole attempts."""
    name = next(iter(context.board.robots))
    context.run_verb('robot', name, 'take-over', '--yes')
    yield
    context.run_verb('robot', name, 'hand-back', '--yes')


def make_round(
    context: ActContext,
    number: int,
    teaching: contextlib.AbstractContextManager[None],
    episodes: int = learning_fleet.LED_EPISODES,
) -> Round:
    """
    Teach until a round begins, with so many new episodes if it is not the first; return the round
    when its version is published.
    """
    watched = context.node
    with teaching:
        if number > 1:
            wanted = watched.learner.episodes_new + episodes
            context.set_parameters(LEARNER, episodes_per_round=wanted)
        context.wait(lambda: watched.learner.round >= number, GATHER_S, f'round {number} begins')
        begun_s = steady_time.now_s()
        context.add_event(f'round {number} begins', mark=f'round {number}')
        context.set_parameters(LEARNER, episodes_per_round=learning_fleet.NO_ROUND_EPISODES)
    before = watched.learner.latest

    def is_published() -> bool:
        now = watched.learner
        if now.round > number:
            raise UserError(f'round {number} failed: see {context.folder}/loop.log')
        return now.latest not in ('', before)

    context.wait(is_published, TRAIN_S, f'round {number} publishes a version')
    version = watched.learner.latest
    context.add_event(f'round {number} published {version}')
    return Round(number, version, begun_s, steady_time.now_s())


def gate_record(context: ActContext, version: str) -> GateRecord:
    """Return the record of a version, once its gate had enough episodes."""
    path = record_path(context.folder / learning_fleet.GATES, version)
    found: list[GateRecord] = []

    def is_judged() -> bool:
        if not path.exists():
            return False
        record = read_record(path)
        found[:] = [] if record.verdict == TOO_FEW else [record]
        return bool(found)

    context.wait(is_judged, GATE_S, f'the gate compares {version}')
    return found[0]


def is_taken_over(context: ActContext, version: str) -> bool:
    """Return whether the gate admits a version, and its trial ends with its promotion."""
    record = gate_record(context, version)
    if record.verdict not in ADMITTED:
        context.add_event(f'{version} is {record.verdict} by its gate: {record.text}')
        return False
    return await_promotion(context, version)


def await_promotion(context: ActContext, version: str) -> bool:
    """Wait for the end of a trial; return whether it is a promotion."""

    def is_over() -> bool:
        now = context.router().canary
        is_its_own = digest_of(now.candidate_policy) == digest_of(version)
        return is_its_own and now.state in (CanaryPhase.PROMOTED, CanaryPhase.ROLLED_BACK)

    context.wait(is_over, TRIAL_S, f'the trial of {version} ends')
    end = context.router().canary
    context.add_event(f'{version} is {end.state.word.replace("_", " ")}: {end.text}')
    return end.state is CanaryPhase.PROMOTED


def await_champion(context: ActContext, version: str) -> None:
    """Wait until the loop has made a promoted version the champion of slot a."""
    context.wait(
        lambda: digest_of(context.slot('a').policy) == digest_of(version)
        and context.router().canary.state is CanaryPhase.OFF,
        FINISH_S,
        f'{version} is the champion',
    )
    context.add_event(f'{version} is the champion in slot a')


def run_history(context: ActContext) -> None:
    folder = str(context.folder / learning_fleet.LOOP)
    context.run_verb('loop', 'history', '--folder', folder, '--hours', '1')


def episodes_with(context: ActContext, version: str, after_s: float = 0.0) -> int:
    """Return the number of episodes placed with a version after a time."""
    with context.board.lock:
        placements = list(context.board.placements)
    wanted = digest_of(version)
    return sum(time_s > after_s and digest_of(policy) == wanted for time_s, policy in placements)


LEARNING_ACTS: dict[str, Callable[[ActContext], Figures]] = {
    'learn': learn,
    'poison': poison,
    'regress': regress,
}
