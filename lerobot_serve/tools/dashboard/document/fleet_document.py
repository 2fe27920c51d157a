# SPDX-License-Identifier: Apache-2.0
"""
The document of the fleet. The poll thread deposits rows and takes turns; each turn has a document
that is never changed afterwards, and the merge patch from the one before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lerobot_serve.tools.dashboard.document.merge_patch import difference, Json

SECTIONS = ('robots', 'routers', 'servers', 'learners', 'incidents', 'episodes')
# without any change, a patch with the time shows a viewer that the stream is alive
LIVENESS_MS = 900


class Turn(NamedTuple):
    """One state of the document, and how it differs from the one before."""

    document: Json
    patch: Json


class FleetDocument:
    """See the module. Rows are replaced, never changed in place."""

    def __init__(self, site: Json, now_ms: int) -> None:
        self._sections: dict[str, Json] = {name: {} for name in SECTIONS}
        self._changed: set[str] = set()
        self._site = site
        self._newest: Json = self._document(now_ms, 0)

    @property
    def newest(self) -> Json:
        return self._newest

    def row(self, section: str, key: str) -> Json | None:
        """Return the present row."""
        found: Json | None = self._sections[section].get(key)
        return found

    def put(self, section: str, key: str, row: Json) -> None:
        """Add or replace a row."""
        if self._sections[section].get(key) != row:
            self._owned(section)[key] = row

    def remove(self, section: str, key: str) -> None:
        if key in self._sections[section]:
            del self._owned(section)[key]

    def replace_section(self, section: str, rows: Json) -> None:
        """Replace all rows; `rows` must not change afterwards."""
        if rows is not self._sections[section]:
            self._sections[section] = rows
            self._changed.discard(section)

    def turn(self, now_ms: int, viewers: int = 0) -> Turn | None:
        """Return the next state; None when nothing changed and the last one is recent."""
        document = self._document(now_ms, viewers)
        patch = difference(self._newest, document)
        is_quiet = patch.keys() <= {'now_ms'}
        if is_quiet and now_ms - self._newest['now_ms'] < LIVENESS_MS:
            return None
        self._newest = document
        return Turn(document, {'now_ms': now_ms, **patch})

    def _owned(self, section: str) -> dict[str, Any]:
        """Return a section that no published document holds."""
        if section not in self._changed:
            self._sections[section] = dict(self._sections[section])
            self._changed.add(section)
        return self._sections[section]

    def _document(self, now_ms: int, viewers: int) -> Json:
        self._changed.clear()
        return {'now_ms': now_ms, 'site': self._site, **self._sections, 'viewers': viewers}
