# SPDX-License-Identifier: Apache-2.0
"""
The tokens of those who may act: a file that only its owner reads, with lines `NAME TOKEN`;
and how long replies to wrong ones wait. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
import getpass
import hmac
import os
from pathlib import Path
import re
import secrets
import shutil

from lerobot_serve.atomic_file import replacement_of, sync_folder
from lerobot_serve.errors import UserError
from lerobot_serve.private_file import mode_of_others

FILE_MODE, FOLDER_MODE = 0o600, 0o700


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file; a reader finds the old or the new one. Raises OSError."""
    with replacement_of(path, durable=True) as part:
        # of a process that was killed
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
        with os.fdopen(handle, 'wb') as file:
            file.write(content)
            file.flush()
            os.fsync(handle)


def make_private_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """
    Make a folder that appears with all of its files; a name may have one /. Raises OSError, also
    where the folder exists and is not empty.
    """
    part = folder.with_name(f'.{folder.name}.part')
    # of a process that was killed
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=FOLDER_MODE)
    try:
        for name, content in files.items():
            (part / name).parent.mkdir(mode=FOLDER_MODE, exist_ok=True)
            write_private(part / name, content)
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    sync_folder(folder.parent)


NAME = re.compile(r'[\w.@-]{1,64}')
TOKEN = re.compile(r'[A-Za-z0-9_-]{16,256}')
TOKEN_BYTES = 24
PEOPLE = 'people who may act on the dashboard'
HEADER = (
    '# {whose}, one a line: NAME TOKEN\n'
    '# add a line for each: '
    "python3 -c 'import secrets; print(secrets.token_urlsafe(24))' makes a token\n"
)


class Tokens:
    """The tokens by name. Immutable; any thread."""

    def __init__(self, tokens: dict[str, str]) -> None:
        self._tokens = {name: token.encode() for name, token in tokens.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._tokens)

    def token_of(self, name: str) -> str:
        return self._tokens[name].decode()

    def name_of(self, given: str) -> str:
        """
        Return the person of a token, empty for a wrong one. All tokens are compared, each in a
        time that does not depend on what is right of it.
        """
        found = ''
        data = given.encode(errors='replace')
        for name, token in self._tokens.items():
            if hmac.compare_digest(data, token):
                found = name
        return found


def open_tokens(path: Path, whose: str = PEOPLE) -> Tokens:
    """
    Read the file, or make it with one token of this user; `whose` is for its first line. Raises
    UserError.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            name = user_name()
            line = f'{name} {secrets.token_urlsafe(TOKEN_BYTES)}\n'
            write_private(path, (HEADER.format(whose=whose) + line).encode())
        check_private(path)
        return Tokens(parsed_tokens(path.read_text('utf-8'), str(path)))
    except OSError as error:
        raise UserError(f'file of tokens {path}: {error.strerror or error}') from error
    except UnicodeDecodeError:
        raise UserError(f'file of tokens {path}: is not UTF-8 text') from None


def user_name() -> str:
    """Return the name of this user as the file has it."""
    try:
        name = re.sub(r'[^\w.@-]', '_', getpass.getuser())[:64]
    except (KeyError, OSError):
        name = ''
    return name or f'uid{os.getuid()}'


def check_private(path: Path) -> None:
    """Raise UserError when others may read the file."""
    if path.is_dir():
        raise UserError(f'file of tokens {path}: is a folder; name a file in it')
    if mode := mode_of_others(path):
        raise UserError(
            f'file of tokens {path}: others may read it (mode {mode:03o}); run `chmod 600 {path}`'
        )


def parsed_tokens(text: str, where: str) -> dict[str, str]:
    """Return the tokens by name. Raises UserError with the line; a token is never printed."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith('#'):
            continue
        place = f'file of tokens {where}:{number}'
        if len(words) != 2:
            raise UserError(f'{place}: must be NAME TOKEN, got {len(words)} words')
        name, token = words
        if not NAME.fullmatch(name):
            raise UserError(f'{place}: a name has letters, digits and . _ @ -, at most 64')
        if not TOKEN.fullmatch(token):
            raise UserError(
                f'{place}: the token of {name} must have 16 to 256 letters, digits, _ and -'
            )
        if name in found or token in found.values():
            raise UserError(f'{place}: {name} or its token is there twice; remove one')
        found[name] = token
    if not found:
        raise UserError(f'file of tokens {where}: has no line NAME TOKEN; remove it for a new one')
    return found


FIRST_DELAY_S, LONGEST_DELAY_S = 0.25, 8.0
FORGET_S, ADDRESSES = 60.0, 1024


class WrongTokens:
    """How often each address was wrong; the oldest address is forgotten first."""

    def __init__(self) -> None:
        self.total = 0
        self._failures: dict[str, tuple[int, float]] = {}

    def delay_s(self, address: str, now_s: float) -> float:
        """Return how long the next reply to an address waits."""
        count, last_s = self._failures.get(address, (0, 0.0))
        if not count or now_s - last_s > FORGET_S:
            return 0.0
        return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(count - 1, 10)))

    def note(self, address: str, now_s: float) -> None:
        """Count a wrong token."""
        self.total += 1
        count, last_s = self._failures.pop(address, (0, 0.0))
        is_recent = now_s - last_s <= FORGET_S
        self._failures[address] = (count + 1 if is_recent else 1), now_s
        while len(self._failures) > ADDRESSES:
            del self._failures[next(iter(self._failures))]
