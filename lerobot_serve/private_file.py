# SPDX-License-Identifier: Apache-2.0
"""Whether a file with a secret is private. Any thread."""

from __future__ import annotations

from pathlib import Path
import stat

OTHERS, GROUP_READS = 0o077, 0o040
ROOT = 0


def mode_of_others(path: Path) -> int:
    """
    Return with which bits of its mode a file is open to others, 0 for a private one. Raises
    OSError.

    That is 0600. A file of root may be readable by its group, too: only root put the group there,
    and it is how Kubernetes gives a secret to a process that is not root.
    """
    status = path.stat()
    allowed = GROUP_READS if status.st_uid == ROOT else 0
    return stat.S_IMODE(status.st_mode) & OTHERS & ~allowed
