# SPDX-License-Identifier: Apache-2.0
"""
The file that says that a person has taken over: it survives the process, and the power.

That it exists is all it says, so no damage can make a policy drive beside a person. Any thread,
one at a time.
"""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.atomic_file import replacement_of, sync_folder

NAME = 'taken_over'
TEXT = 'A person has taken over this robot. The service ~/hand_back removes this file.\n'


class TakeoverFile:
    """The file in the state folder of one robot."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def exists(self) -> bool:
        """Return whether a person has taken over; true where that cannot be found out."""
        try:
            self.path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def create(self) -> None:
        """Write the file to the disk. Raises OSError."""
        with replacement_of(self.path, durable=True) as part:
            part.write_text(TEXT)
            sync_folder(part)

    def remove(self) -> None:
        """Remove the file from the disk. Raises OSError."""
        self.path.unlink(missing_ok=True)
        sync_folder(self.path.parent)
