# SPDX-License-Identifier: Apache-2.0
"""Errors of versions and their stores; each text says what was given and what to do."""

from __future__ import annotations

import errno

from lerobot_serve.errors import UserError

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class VersionError(UserError):
    """A version or a store cannot be used as asked."""


class ManifestError(VersionError):
    """A manifest breaks a rule of its format."""


class StoreError(VersionError):
    """The folder of a store cannot be read or written."""


class NoSuchVersion(VersionError):
    """No version, or more than one, has the name that was given."""


class VersionInUse(VersionError):
    """Another process holds the version: it serves, fetches or deletes it."""


class VersionKept(VersionError):
    """A version is not deleted: it is pinned, or the parent of another one."""


class VersionConflict(VersionError):
    """The store has a version of this id with other files."""


class DamagedVersion(VersionError):
    """The files of a version are not those of its manifest."""


class PublishError(VersionError):
    """A folder cannot be published."""


class FetchError(VersionError):
    """A version cannot be fetched from its source."""


class Interrupted(FetchError):
    """A transfer ended early; it may continue where it ended."""


def store_error(what: str, error: OSError) -> StoreError:
    """Return the error of a failed system call; a full disk has its own remedy."""
    reason = error.strerror or str(error)
    if error.errno in FULL_DISK:
        return StoreError(
            f'{what}: {reason}; the store has no incomplete version. Make room (`lerobot-serve '
            'versions list` prints sizes) and run the command again'
        )
    return StoreError(f'{what}: {reason}; check the folder and its permissions')
