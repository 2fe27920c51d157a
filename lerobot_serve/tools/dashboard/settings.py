# SPDX-License-Identifier: Apache-2.0
"""What the verb `dashboard` was given, checked. Reads the files that are named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import ssl
from typing import TYPE_CHECKING

from lerobot_serve.errors import UserError

if TYPE_CHECKING:
    from lerobot_serve.zenoh.settings import ZenohSettings

ADDRESS, PORT, LAST_PORT = '127.0.0.1', 8300, 65535
TOKENS = Path('lerobot_serve/dashboard_tokens')


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """
    See docs/dashboard.md. The folders are made where they are missing, as the nodes that write
    them do: the dashboard of a fleet starts before its nodes. `host_names` are names under which
    the page is opened beside localhost and that of this machine; `prints_token`: print the
    address with the token.
    """

    tokens: Path
    address: str = ADDRESS
    port: int = PORT
    host_names: tuple[str, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    trace_folder: Path | None = None
    capture_folder: Path | None = None
    prints_token: bool = False
    zenoh: ZenohSettings | None = None

    def __post_init__(self) -> None:
        """Raise UserError for what cannot be right."""
        if not 0 <= self.port <= LAST_PORT:
            raise UserError(f'--port must be in [0, {LAST_PORT}], got {self.port}')
        if (self.tls_certificate is None) is not (self.tls_key is None):
            raise UserError('--tls-certificate and --tls-key belong together; give both')
        for option, folder in (
            ('--trace-folder', self.trace_folder),
            ('--capture-folder', self.capture_folder),
        ):
            if folder is not None:
                make_folder(option, folder)

    def tls(self) -> ssl.SSLContext | None:
        """Return the settings of TLS, None without. Raises UserError."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.tls_certificate, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise UserError(
                f'--tls-certificate {self.tls_certificate} and --tls-key {self.tls_key} cannot be '
                f'used: {error.strerror or error}'
            ) from error
        return context


def make_folder(option: str, folder: Path) -> None:
    """Make a folder that is missing. Raises UserError with the name of its option."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = 'is no folder' if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f'{option} {folder}: {reason or error}') from error
