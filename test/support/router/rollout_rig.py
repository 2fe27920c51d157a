# SPDX-License-Identifier: Apache-2.0
"""A rollout with a real router and servers: a robot that plays episodes, and its judge."""

from __future__ import annotations

from lerobot_serve_interfaces.msg import CanaryState, EpisodeOutcome
from support.nodes.router_rig import RouterRig
from support.nodes.small_client import SmallClient

SUCCESS, FAILURE = EpisodeOutcome.SUCCESS, EpisodeOutcome.FAILURE
# decided in seconds: no waiting, and guards that need commands are switched off
PLAN = {
    'canary.plan': "['50:10:0', '100']",
    'canary.minimum_step_s': 0.0,
    'canary.block_episodes': 1,
    'canary.margin': 0.3,
    'canary.max_trip_percent': 0.0,
    'canary.max_fallback_percent': 0.0,
    'canary.max_latency_ratio': 1000.0,
}


class Fleet:
    """A robot that plays one episode after the other, and its judge."""

    def __init__(self, rig: RouterRig, client: SmallClient) -> None:
        self.rig, self.client, self.count = rig, client, 0

    def play(self, succeeds: dict[str, bool], task: str = '', report: bool = True) -> str:
        """Play an episode, report how it ended for its slot, and return the slot."""
        self.count += 1
        name = f'episode-{self.count}'
        for _ in range(3):
            chunk = self.client.round_trip(episode_id=name, task=task)
        if report and chunk.slot:
            outcome = SUCCESS if succeeds[chunk.slot] else FAILURE
            assert self.rig.report(name, outcome).accepted
        return chunk.slot

    def play_until(self, state: int, **how: object) -> CanaryState:
        def reached() -> CanaryState | None:
            self.play(**how)
            now = self.rig.watch.last.get(CanaryState)
            return now if now and now.state == state else None

        return self.rig.wait(reached, f'the canary in state {state}', 60.0)


def canary(rig: RouterRig, **more: object) -> Fleet:
    rig.slots(**{**PLAN, **more})
    return fleet_of(rig)


def fleet_of(rig: RouterRig) -> Fleet:
    """Return a robot of a router with a plan."""
    fleet = Fleet(rig, rig.robot())
    rig.wait(lambda: rig.watch.last.get(CanaryState), 'the state of the canary')
    return fleet
