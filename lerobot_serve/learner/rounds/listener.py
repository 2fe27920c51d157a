# SPDX-License-Identifier: Apache-2.0
"""What a learner calls: the node implements it, in the thread `rounds`."""

from __future__ import annotations

from typing import Protocol

from lerobot_serve.learner.rounds.settings import Shown


class LearnerListener(Protocol):
    """Hears what the learner does."""

    def on_state(self, shown: Shown) -> None:
        """Show a state: at each change, and each second while a round runs."""

    def on_version(self, version_id: str) -> None:
        """Announce a version of the store."""

    def log_info(self, text: str) -> None: ...

    def log_warning(self, text: str) -> None: ...
