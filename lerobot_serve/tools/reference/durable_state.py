# SPDX-License-Identifier: Apache-2.0
"""
The list of what was decided, or accepted, and survives SIGKILL of the process that said so; it is
docs/durable_state.md. Plain; any thread.
"""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.edge.decisions import Decision

INTRODUCTION = """# What survives a crash

Generated from the code by `make docs`; do not edit. A reply that says yes means: it is on the
disk, or it is counted at its worst after the restart. Each row is in force again before the node
that starts next commands a robot or places an episode, and nothing but what the last column names
ends it. Where the disk fails, the reply and the state of the node say so.

The cage latches, and the ladder stops, in a control step, which never waits for a disk: the file
follows within half a millisecond, up to 0.2 s when this process itself is busy, and `EdgeState`
says when it could not be written.

Another fleet file (a renamed or copied one, too), the verb `edge` in place of `up`, another name,
user or ROS_HOME is another `state_folder`: the robot then starts without its pause and its latch.
Give it the same `state_folder`, or look at the robot first.
"""


class DurableState(NamedTuple):
    """`node` keeps `what` in `place` until `lifted_by`; `kind` is its name there."""

    node: str
    what: str
    kind: str
    place: str
    lifted_by: str


EDGE, ROUTER, LEARNER = 'edge_controller', 'policy_router', 'learner'
STORE = 'the store: `router.sqlite`, or the database of `state_url`'
DURABLE_STATES = (
    *(
        DurableState(
            EDGE,
            decision.text.removesuffix('.'),
            decision.file,
            f'`state_folder`/`{decision.file}`',
            f'`{decision.lifted_by}`',
        )
        for decision in Decision
    ),
    DurableState(
        ROUTER,
        'Parameters that were set live, the split and the plan among them',
        'parameter',
        STORE,
        'another value; with `router.sqlite` also a change of the parameter file',
    ),
    DurableState(ROUTER, 'Slots that are drained', 'drain', STORE, '`restore SLOT`, or RESTORE'),
    DurableState(
        ROUTER,
        'Verdicts: policies that are barred or promoted',
        'verdict',
        STORE,
        '`rollout resume`, or LIFT_VERDICT',
    ),
    DurableState(
        ROUTER,
        'The rollout: its state, plan, step, counts and evidence',
        'canary',
        STORE,
        '`rollout stop`, or its end',
    ),
    DurableState(
        ROUTER,
        'Episodes that began, and the outcomes that were accepted, until they are in its counts',
        'episodes',
        STORE,
        'the counts of the rollout',
    ),
    DurableState(
        ROUTER,
        'The slot of each episode',
        'placements',
        STORE,
        'the end of the episode, or a drain, which moves it',
    ),
    DurableState(
        ROUTER, 'What a policy has shown in shadow', 'shadow', STORE, 'another policy in its slot'
    ),
    DurableState(
        LEARNER,
        'A person has paused it',
        'paused',
        'the memory in `folder`',
        '`~/resume`',
    ),
)


def durable_state() -> str:
    """Return the page."""
    rows = [f'| {s.node} | {s.what} | {s.place} | {s.lifted_by} |' for s in DURABLE_STATES]
    head = ['| node | what | kept in | ended by |', '|---|---|---|---|']
    return '\n'.join([INTRODUCTION, *head, *rows, '', NOT_KEPT, ''])


NOT_KEPT = """Not kept: placements and begins of the last moment (after a power cut: seconds), the
replies, commands and shadow samples of the last 5 to 10 s, and what robots and groups have used of
their quotas: a router that starts again admits each at most one burst more (`quota_burst_s`)."""
