# SPDX-License-Identifier: Apache-2.0
"""Log lines that repeat: the first at once, the others with a count."""

from __future__ import annotations

from lerobot_serve.telemetry.log_throttle import KEYS_LIMIT, LogThrottle

S = 1_000_000_000


class Logged:
    def __init__(self) -> None:
        self.now_ns, self.lines = 0, []
        self.throttle = LogThrottle(lambda: self.now_ns)

    def say(self, key: str, text: str) -> None:
        self.throttle.emit(self.lines.append, key, text)


def test_the_first_is_logged_at_once_and_repeats_are_counted():
    logged = Logged()
    for number in range(5):
        logged.say('a', f'a {number}')
    logged.say('b', 'b')
    assert logged.lines == ['a 0', 'b']
    logged.now_ns = 10 * S - 1
    logged.throttle.flush()
    assert logged.lines == ['a 0', 'b']
    logged.now_ns = 10 * S
    logged.throttle.flush()
    assert logged.lines[2:] == ['a 4 (4 times in 10 s)']
    logged.throttle.flush()
    logged.now_ns = 20 * S
    logged.throttle.flush()
    assert len(logged.lines) == 3
    # what did not repeat is new again
    logged.say('a', 'a again')
    assert logged.lines[-1] == 'a again'


def test_the_keys_are_bounded():
    logged = Logged()
    for number in range(3 * KEYS_LIMIT):
        logged.say(str(number), 'x')
    assert len(logged.lines) == KEYS_LIMIT + 1
    assert len(logged.throttle._lines) == KEYS_LIMIT + 1
