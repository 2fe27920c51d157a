# SPDX-License-Identifier: Apache-2.0
"""The identifiers that join the records of edge, router and server. Plain; any thread."""

from __future__ import annotations

from typing import Any, NamedTuple

from lerobot_serve.contract.names import session_name


class RecordIds(NamedTuple):
    """Identifiers, with the same names in every record kind."""

    client_id: str = ''
    session_epoch: int | None = None
    seq: int | None = None
    episode_id: str = ''

    def fields(self) -> dict[str, Any]:
        """Return the fields of a record, including the session name of client and epoch."""
        epoch = self.session_epoch
        name = session_name(self.client_id, epoch) if self.client_id and epoch is not None else ''
        return {'client_id': self.client_id, 'session_id': name} | self._asdict()


NO_IDS = RecordIds()
