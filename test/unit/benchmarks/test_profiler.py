# SPDX-License-Identifier: Apache-2.0
"""An executable under the profiler: each thread for itself, waiting costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.harness import profiler
from benchmarks.harness.processes import module_command

PROGRAM = """
import os, signal, sys, threading, time

half, go_on = threading.Event(), threading.Event()

def spend(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

def before():
    spend(0.2)

def after():
    spend(0.1)

def work():
    before()
    half.set()
    go_on.wait()
    after()

def wait():
    time.sleep(0.3)

threads = [threading.Thread(target=each, name=each.__name__) for each in (wait, work)]
for thread in threads:
    thread.start()
half.wait()
if '--forget' in sys.argv:
    os.kill(os.getpid(), signal.SIGUSR1)
go_on.set()
for thread in threads:
    thread.join()
print(sys.argv[1:], __name__)
raise SystemExit(3)
"""


@pytest.mark.skipif(not profiler.is_possible(), reason=profiler.WHY_NOT)
@pytest.mark.parametrize(('option', 'spent_s'), [('--all', 0.3), ('--forget', 0.1)])
def test_a_thread_that_works_is_told_apart_from_one_that_waits(tmp_path, option, spent_s):
    program, found = tmp_path / 'program.py', tmp_path / 'found'
    program.write_text(PROGRAM)
    command = module_command('harness.profiler', found, program, option)
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout == f"['{option}'] __main__\n"
    assert result.returncode == 3, result.stderr
    threads = profiler.read(found)
    assert list(threads) == ['work', 'wait']
    assert sum(threads['work'].values()) == pytest.approx(spent_s, rel=0.2)
    assert sum(threads['wait'].values()) < 0.05
    hottest = list(threads['work'])[:2]
    assert any(name.endswith(f'{tmp_path.name}/program.py:6 spend') for name in hottest)


def test_a_thread_that_did_next_to_nothing_is_left_out():
    threads = {'busy': {'a': 0.6, 'b': 0.395}, 'idle': {'c': 0.005}}
    assert profiler.summarize_threads(threads, 1) == {'busy': '100%: a 60.0%'}
    assert profiler.summarize_threads(threads, 2) == {'busy': '100%: a 60.0%; b 39.5%'}
    assert profiler.summarize_threads({}, 1) == {}


@pytest.mark.parametrize(
    ('code', 'name'),
    [
        ("<method 'publish' of 'Publisher' objects>", 'method publish of Publisher objects'),
        ('<built-in method time.sleep>', 'time.sleep'),
        (compile('\n\n', '/a/b/router/dispatch.py', 'exec'), 'router/dispatch.py:1 <module>'),
    ],
)
def test_functions_are_named_as_a_reader_knows_them(code, name):
    assert profiler.named(code) == name


def test_it_is_told_where_threads_cannot_be_profiled(monkeypatch):
    monkeypatch.setattr(sys, 'version_info', (3, 12, 1))
    assert not profiler.is_possible()
    monkeypatch.setattr(sys, 'version_info', (3, 10, 4))
    assert profiler.is_possible()
