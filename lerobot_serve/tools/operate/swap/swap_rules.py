# SPDX-License-Identifier: Apache-2.0
"""What `lerobot-serve swap` does in each state of a server. Pure."""

from __future__ import annotations

from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.tools.operate.fleet_state import ServerView
from lerobot_serve.tools.operate.rule import Effect, filled, refuse, Rule

BEGIN = Rule(
    Effect.DO,
    'load {given} beside {policy} and let it replace that policy under {sessions}: their next '
    'chunk is of the new policy and says so',
    asks=True,
)
LOADS = refuse('{name} is {swap_text}; wait for its end')
NOT_ACTIVE = refuse(
    '{name} is {state} and serves nothing ({text}): activate it; to change a policy that is not '
    'served set policy_path. Nothing was changed'
)


def swap_rule(server: ServerView, given: str) -> Rule:
    """Return what a swap to the folder or version `given` does, with its text filled in."""
    status = server.status
    if status.state is not ServerStatus.State.ACTIVE:
        rule = NOT_ACTIVE
    else:
        rule = LOADS if status.swap is ServerStatus.Swap.LOADING else BEGIN
    count = status.active_sessions
    return filled(
        rule,
        name=server.name,
        given=given,
        policy=status.policy,
        sessions=f'{count} open session{"" if count == 1 else "s"}',
        state=status.state.name,
        text=status.text or 'no text',
        swap_text=status.swap_text,
    )
