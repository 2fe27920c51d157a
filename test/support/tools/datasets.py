# SPDX-License-Identifier: Apache-2.0
"""The verb `dataset` as a user calls it, and the rows that it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import parquet

from lerobot_serve.tools.cli.main import main


def dataset(*arguments: object) -> int:
    """Return the exit status."""
    return main(['dataset', *map(str, arguments)])


def rows_of(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / 'data').glob('*/*.parquet'))
    return [row for file in files for row in parquet.read_table(file).to_pylist()]
