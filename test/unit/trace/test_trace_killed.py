# SPDX-License-Identifier: Apache-2.0
"""A process that is killed while it writes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.paths import REPOSITORY

from lerobot_serve.tools.traces.reader import read_records

FIRST = 300
CHILD = f"""
from itertools import count
from pathlib import Path
import sys
import threading
from support.tools.trace_rig import header, IDS
from lerobot_serve.trace.format import records
from lerobot_serve.trace.writing.writer import TraceWriter

writer = TraceWriter(
    Path(sys.argv[1]),
    'edge',
    header(),
    limit_bytes=int(sys.argv[2]),
    keep_files=10**6,
    log_warning=print,
)
threading.Thread(target=writer.run, args=(threading.Event(),), daemon=True).start()
for seq in count():
    ids, reason = IDS._replace(seq=seq), 'x' * (seq % 500)
    writer.write(records.RequestRecord(seq, *ids.fields(), status='ok', reason=reason))
    if seq >= {FIRST}:
        writer.drain()
    if seq == {FIRST}:
        print('going on', flush=True)
"""


@pytest.mark.parametrize('limit_bytes', [1 << 30, 8192])
def test_a_killed_process_tears_at_most_the_last_line(tmp_path, limit_bytes):
    command = [sys.executable, '-c', CHILD, str(tmp_path), str(limit_bytes)]
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={'PYTHONPATH': f'{REPOSITORY / "test"}:{REPOSITORY}'},
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout.readline() == b'going on\n'
        child.kill()
    items = list(read_records(tmp_path / 'edge.jsonl'))
    kinds = [record['kind'] for _, record in items]
    damage = [record for _, record in items if record['kind'] == 'damaged']
    assert len(damage) <= 1
    if damage:
        assert kinds[-1] == 'damaged'
        assert damage[0]['reason'] == 'torn'
    seqs = [record['seq'] for _, record in items if record['kind'] == 'request']
    assert len(seqs) > FIRST
    assert seqs == list(range(len(seqs)))
    assert kinds[0] == 'header'
    assert kinds.count('footer') >= kinds.count('header') - 1
