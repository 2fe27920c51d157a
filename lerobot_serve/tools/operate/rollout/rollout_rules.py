# SPDX-License-Identifier: Apache-2.0
"""
What each verb of a rollout does in each state, and where it makes no sense: one table. Pure.
"""

from __future__ import annotations

from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.rule import Effect, nothing, refuse, Rule, Verb

PHASE = CanaryPhase
NONE_RUNS = 'no rollout runs; start one with `lerobot-serve rollout start`'
ABORTS = '`lerobot-serve rollout abort` gives all new episodes to slot a'
RESUME_BARRED = Rule(
    Effect.DO,
    'lift the verdict on {candidate}; the rollout starts again at its first step with all counts '
    'at 0',
    'CANARY_RESUME',
    ('WAITING', 'RUNNING', 'UNDECIDED'),
    asks=True,
)
RESUME_PAUSED = Rule(
    Effect.DO,
    'continue the rollout of {candidate} at {share_percent} %',
    'CANARY_RESUME',
    ('RUNNING', 'UNDECIDED', 'PROMOTED', 'ROLLED_BACK'),
)
PAUSE = Rule(
    Effect.DO,
    'keep {candidate} at {share_percent} %; guards and the comparison still roll back',
    'CANARY_PAUSE',
    ('PAUSED',),
)
PROMOTE = Rule(
    Effect.DO,
    'give {candidate} {next_share} (now step {step_number} of {step_count}, {share_percent} %) '
    'without waiting for the comparison',
    'CANARY_PROMOTE',
    # the step changes, too; see operations.confirms
    ('RUNNING', 'UNDECIDED', 'PAUSED', 'PROMOTED'),
    asks=True,
)
ABORT = Rule(
    Effect.DO,
    'roll back {candidate}: all new episodes to slot a; it drives no robot until a person lifts '
    'the verdict',
    'CANARY_ROLLBACK',
    ('ROLLED_BACK',),
    asks=True,
)
STOP = Rule(
    Effect.DO,
    'remove the plan and give all new episodes to slot a, without a verdict on {candidate}',
    asks=True,
)
START = Rule(Effect.DO, 'start a rollout', asks=True)
FINISH = Rule(
    Effect.DO,
    'load {candidate} into each server of slot a, one by one, while slot b serves; then all new '
    'episodes to slot a, and the plan is removed. No champion is left to go back to{watched}',
    asks=True,
)


RUNS = refuse(
    'a rollout of {candidate} has begun ({text}); end it first: `lerobot-serve rollout stop` '
    'without a verdict, `lerobot-serve rollout abort` to bar its policy'
)
NOT_PAUSED = nothing('the rollout is not paused: {text}')
NOT_UNDONE = refuse('a step is not undone; ' + ABORTS)
NOT_PROMOTED = refuse('{candidate} is not promoted: {text}')
Row = dict[tuple[Verb, CanaryPhase], Rule]


def row(verb: Verb, rule: Rule, *phases: CanaryPhase) -> Row:
    """Return the rules of a verb for the phases in which it does the same."""
    return {(verb, phase): rule for phase in phases}


ROLLOUT_RULES: Row = {
    **row(Verb.START, START, PHASE.OFF, PHASE.ROLLED_BACK),
    **row(Verb.START, RUNS, PHASE.WAITING, *ON_TRIAL),
    (Verb.START, PHASE.PROMOTED): refuse(
        '{candidate} is promoted and serves all episodes; make it the champion first with '
        '`lerobot-serve rollout finish`'
    ),
    (Verb.PAUSE, PHASE.OFF): refuse(NONE_RUNS),
    (Verb.PAUSE, PHASE.WAITING): refuse(
        '{candidate} gets no episodes yet: {text}. ' + ABORTS + ' and ends the wait'
    ),
    **row(Verb.PAUSE, PAUSE, PHASE.RUNNING, PHASE.UNDECIDED),
    (Verb.PAUSE, PHASE.PAUSED): nothing('{text}'),
    (Verb.PAUSE, PHASE.PROMOTED): refuse('{candidate} is promoted already; ' + ABORTS),
    (Verb.PAUSE, PHASE.ROLLED_BACK): refuse('{text}'),
    (Verb.RESUME, PHASE.OFF): refuse(NONE_RUNS),
    **row(Verb.RESUME, NOT_PAUSED, PHASE.WAITING, PHASE.RUNNING, PHASE.UNDECIDED),
    (Verb.RESUME, PHASE.PAUSED): RESUME_PAUSED,
    (Verb.RESUME, PHASE.PROMOTED): nothing('{candidate} is promoted already'),
    (Verb.RESUME, PHASE.ROLLED_BACK): RESUME_BARRED,
    (Verb.PROMOTE, PHASE.OFF): refuse(NONE_RUNS),
    (Verb.PROMOTE, PHASE.WAITING): refuse('{candidate} may take no episodes yet: {text}'),
    **row(Verb.PROMOTE, PROMOTE, *ON_TRIAL),
    (Verb.PROMOTE, PHASE.PROMOTED): nothing('{text}'),
    (Verb.PROMOTE, PHASE.ROLLED_BACK): refuse(
        '{text}. To try it again: `lerobot-serve rollout resume`'
    ),
    (Verb.ABORT, PHASE.OFF): refuse(
        'no rollout runs; to take a policy off the robots: `lerobot-serve drain b` or '
        '`lerobot-serve drain a`'
    ),
    **row(Verb.ABORT, ABORT, PHASE.WAITING, *ON_TRIAL, PHASE.PROMOTED),
    (Verb.ABORT, PHASE.ROLLED_BACK): nothing('{text}'),
    (Verb.UNDO, PHASE.OFF): refuse(NONE_RUNS),
    (Verb.UNDO, PHASE.WAITING): refuse('nothing to undo; ' + ABORTS),
    **row(Verb.UNDO, NOT_UNDONE, PHASE.RUNNING, PHASE.UNDECIDED),
    (Verb.UNDO, PHASE.PAUSED): RESUME_PAUSED,
    (Verb.UNDO, PHASE.PROMOTED): refuse('a promotion is not undone step by step; ' + ABORTS),
    (Verb.UNDO, PHASE.ROLLED_BACK): RESUME_BARRED,
    (Verb.STOP, PHASE.OFF): nothing('no rollout runs'),
    # of one that is rolled back the verdict that bars it stays
    **row(Verb.STOP, STOP, PHASE.WAITING, *ON_TRIAL, PHASE.PROMOTED, PHASE.ROLLED_BACK),
    (Verb.FINISH, PHASE.OFF): refuse('no policy is promoted: ' + NONE_RUNS),
    **row(Verb.FINISH, NOT_PROMOTED, PHASE.WAITING, *ON_TRIAL, PHASE.ROLLED_BACK),
    (Verb.FINISH, PHASE.PROMOTED): FINISH,
}
# slot b serves another policy than the one of the plan: the rules that differ from WAITING
OTHER_POLICY_RULES: dict[Verb, Rule] = {
    **{verb: ROLLOUT_RULES[verb, PHASE.WAITING] for verb in Verb},
    Verb.START: START,
    Verb.RESUME: refuse('{text}'),
    Verb.PROMOTE: refuse('{text}'),
    Verb.UNDO: refuse('{text}'),
}
