# SPDX-License-Identifier: Apache-2.0
"""
Check and rewrite the zip archive of a program before torch reads it. Any thread.

torch receives an archive rewritten from the checked members: two zip readers may see different
members in one file, and the rewritten archive contains only checked ones.
"""

from __future__ import annotations

from collections.abc import Callable
import io
from pathlib import Path
import re
import zipfile
import zlib

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.file_headers import unreadable

# member name -> its rule; None leaves the member out
MemberRules = dict[str, Callable[[bytes], bytes | None]]
READ_ERRORS = (
    OSError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    AttributeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


class UnsafeProgram(Exception):
    """A program that must not be loaded; the text continues "it ..."."""


def keep_member(data: bytes) -> bytes:
    """Return the member unchanged: numbers, or a version text."""
    return data


def drop_member(data: bytes) -> None:
    """Leave out an unused member."""


def checked_archive(file: Path, rules: MemberRules) -> io.BytesIO:
    """Return the archive without the members that the rules leave out. Raises PolicyError."""
    kept = io.BytesIO()
    try:
        with zipfile.ZipFile(file) as archive, zipfile.ZipFile(kept, 'w') as target:
            for member in _members(archive, file):
                data = _rule(member.filename, rules)(archive.read(member))
                if data is not None:
                    target.writestr(member.filename, data)
    except UnsafeProgram as error:
        raise PolicyError(
            f'{file} is refused: it {error}; a program must not contain anything that can run '
            'as Python or reach files; export it again'
        ) from error
    except READ_ERRORS as error:
        raise unreadable(file, 'program archive', error) from error
    kept.seek(0)
    return kept


def _members(archive: zipfile.ZipFile, file: Path) -> list[zipfile.ZipInfo]:
    names = archive.namelist()
    if len(set(names)) < len(names):
        raise PolicyError(f'{file} holds two members with the same name; export it again')
    members = archive.infolist()
    # torch compresses nothing, so the unpacked size is at most the file size
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise UnsafeProgram('holds a compressed member')
    if sum(member.file_size for member in members) > file.stat().st_size:
        raise UnsafeProgram('declares more bytes than the file has')
    return members


def _rule(name: str, rules: MemberRules) -> Callable[[bytes], bytes | None]:
    # torch puts all members into one folder with an arbitrary name
    _, _, inner = name.partition('/')
    for pattern, rule in rules.items():
        if re.fullmatch(pattern, inner):
            return rule
    raise UnsafeProgram(f'holds {inner!r:.80}, which is not allowed in a program')
