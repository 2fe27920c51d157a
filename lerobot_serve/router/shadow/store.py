"""
One file of JSON that is written as a whole or not at all.

A file that cannot be read is set aside and told; a disk that cannot be written is told once, until
it can be written again. Neither raises. Owned by the shadow thread.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import json
import os
from pathlib import Path
from typing import Any

# no file of ours is as long
BYTES_LIMIT = 1 << 26


class Store:
    """See the module. `failures` counts the times that it could not be written."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        # where a link leads, so that the link stays when the file is replaced
        self._path = Path(os.path.realpath(path))
        self._tell = tell
        self._is_failing = False
        self.failures = 0

    def load(self) -> Any:
        """Return what the file holds, None when it holds nothing that can be read."""
        try:
            with open(self._path, 'rb') as file:
                data = file.read(BYTES_LIMIT + 1)
            if len(data) > BYTES_LIMIT:
                raise ValueError('it is far too long')
            return json.loads(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.set_aside(str(error))
            return None

    def set_aside(self, why: str) -> None:
        """Keep a file that cannot be used under another name."""
        aside = self._path.with_name(f'{self._path.name}.broken')
        with contextlib.suppress(OSError):
            os.replace(self._path, aside)
        self._tell(
            f'{self._path} cannot be used ({why[:200]}): what was learned in shadow before is '
            f'forgotten; the file is {aside.name} now'
        )

    def save(self, content: Any) -> bool:
        """Put `content` in place of what the file holds; return whether that was possible."""
        new = self._path.with_name(f'{self._path.name}.new')
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(new, 'w', encoding='utf-8') as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError as error:
            self._fail(error, new)
            return False
        self._is_failing = False
        return True

    def _fail(self, error: OSError, new: Path) -> None:
        self.failures += 1
        with contextlib.suppress(OSError):
            new.unlink()
        if not self._is_failing:
            self._is_failing = True
            self._tell(
                f'{self._path} cannot be written ({error.strerror or error}): what is learned in '
                'shadow is forgotten when the router is started again'
            )
