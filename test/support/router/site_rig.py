# SPDX-License-Identifier: Apache-2.0
"""Several routers of one site with a real shared state, and threads that run when asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

from lerobot_serve.trace.format.records import RecordIds
from support.router.router_core_rig import RoutingRig, SECOND, TWO_SLOTS


class SiteRouter(RoutingRig):
    """A router of a site; live parameters take effect as in a node."""

    def __init__(self, folder: Path, url: str, name: str, **parameters: object) -> None:
        self.name = name
        values = {**TWO_SLOTS, 'state_url': url, **parameters}
        super().__init__(folder, **values)

    def _set_own(self, **values: object) -> None:
        self.core.change_parameters(replace(self.core.parameters, **values))

    def step(self, seconds: float = 1.0) -> None:
        """Do what the threads do: write, look, apply, run the rollout."""
        self.now_ns += int(seconds * SECOND)
        self.core.writer.flush()
        self.core.follower.look()
        self.core.shared.poll(self.now_ns)
        self.core.update_canary()
        self.core.writer.flush()

    def place(self, episode_id: str) -> str:
        """Place an episode by a goal; return its slot."""
        placement, _ = self.core.place_goal(RecordIds('robot', 1, 1, episode_id))
        return placement.slot

    def close(self) -> None:
        super().close()
        self.core.follower.wake()
        self.core.follower.close()


class Site:
    """The routers of a site."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self.url = folder, url
        self.routers: list[SiteRouter] = []

    def start(self, name: str = '', **parameters: object) -> SiteRouter:
        name = name or f'/router_{len(self.routers) + 1}'
        folder = Path(mkdtemp(dir=self._folder))
        router = SiteRouter(folder, self.url, name, **parameters)
        self.routers.append(router)
        return router

    def step(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            for router in self.routers:
                router.step()

    def kill(self, router: SiteRouter) -> None:
        """End a router without a word: what it has not written is lost."""
        self.routers.remove(router)
        router.core.follower.close()
        router.core.close()

    def close(self) -> None:
        for router in self.routers:
            router.close()
