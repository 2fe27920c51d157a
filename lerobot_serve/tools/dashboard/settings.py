# SPDX-License-Identifier: Apache-2.0
"""What the verb `dashboard` was given, checked. Reads the files that are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.errors import UserError
from lerobot_serve.state_folder import ros_home
from lerobot_serve.tools.argument import Argument

if TYPE_CHECKING:
    import ssl

ADDRESS, PORT, LAST_PORT = '127.0.0.1', 8300, 65535
TOKENS = Path('lerobot_serve/dashboard_tokens')


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """
    See docs/dashboard.md. The folders are made where they are missing, as the nodes that write
    them do: the dashboard of a fleet starts before its nodes.
    """

    address: Annotated[
        str,
        Argument(f'address to listen on ({ADDRESS}: this machine alone)', names_default=False),
    ] = ADDRESS
    port: Annotated[int, Argument('port, 0 for a free one', 'N')] = PORT
    host_name: Annotated[
        Sequence[str],
        Argument(
            'further names under which the page is opened (localhost and that of this machine)',
            'NAME',
            nargs='+',
        ),
    ] = ()
    token_file: Annotated[
        Path | None,
        Argument(
            'lines NAME TOKEN of those who may act (below ROS_HOME, made at the first start)',
            'FILE',
        ),
    ] = None
    print_token: Annotated[
        bool,
        Argument('print the address with the token also where the output is not a terminal'),
    ] = False
    tls_certificate: Annotated[Path | None, Argument('serve https', 'FILE')] = None
    tls_key: Annotated[Path | None, Argument('key of the certificate', 'FILE')] = None
    trace_folder: Annotated[Path | None, Argument('traces, to explain incidents', 'FOLDER')] = None
    capture_folder: Annotated[Path | None, Argument('captures of policy servers', 'FOLDER')] = None

    @property
    def tokens(self) -> Path:
        return (self.token_file or ros_home() / TOKENS).expanduser().absolute()

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
        import ssl

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
        reason = 'is not a folder' if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f'{option} {folder}: {reason or error}') from error
