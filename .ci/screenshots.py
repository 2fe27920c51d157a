# SPDX-License-Identifier: Apache-2.0
"""
Write the pictures of the dashboard's page into docs/images, of a fleet that no node runs.

    python3 .ci/workspace.py python .ci/screenshots.py

Needs a Chromium, as the tests of the page do, and Pillow, which comes with torch. Run it after a
change of the page.
"""

from __future__ import annotations

from collections.abc import Callable
import io
import math
from pathlib import Path
import sys

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / 'test'), str(ROOT)]

from PIL import Image  # noqa: E402
from playwright.sync_api import Page  # noqa: E402
from support.dashboard.browser import chromium_path, opened_tab, started_browser  # noqa: E402
from support.dashboard.example_fleet import (  # noqa: E402
    fleet,
    guard,
    node_of,
    robot,
    Row,
    V1,
    V2,
)
from support.dashboard.page_server import now_ms, PageServer, TOKEN  # noqa: E402

from lerobot_serve.tools.dashboard.document.rows import SILENT_RANK, STOPPED_RANK  # noqa: E402

FOLDER = ROOT / 'docs' / 'images'
SCHEMES = ('dark', 'light')
WIDTH, HEIGHT, COLOURS, LARGEST_BYTES = 1280, 800, 256, 150_000
ROBOTS = 24
# the robots that something is wrong with; all others stream
IN_TROUBLE: dict[str, Row] = {
    'robot_7': {
        'state': 'DEAD',
        'rung': 'NO_COMMAND',
        'stopped': True,
        'rank': STOPPED_RANK,
        'queue_remaining_s': 0.0,
        'cage_trips': 1,
        'reason': 'the cage latched: elbow_flex at 2.1 rad/s, limit 1.5 rad/s',
    },
    'robot_14': {'rank': SILENT_RANK, 'silent_since_ms': 0},
    'robot_16': {
        'state': 'STALLED',
        'rung': 'HOLD',
        'rank': 6,
        'queue_remaining_s': 0.0,
        'stalls': 2,
        'reason': 'no chunk for 4.1 s: /v2/policy_server does not reply',
    },
    'robot_5': {
        'state': 'DEGRADED',
        'rank': 13,
        'queue_remaining_s': 0.3,
        'action_age_s': 0.9,
        'reason': 'replies late: 3 of the last 10',
    },
    'robot_9': {'paused': True, 'rung': 'HOLD', 'rank': 14, 'reason': 'paused: cable check'},
}


def example_robots() -> dict[str, Row]:
    """Return the robots of the pictures."""
    rows = {}
    for number in range(1, ROBOTS + 1):
        name, is_candidate = f'robot_{number}', number % 4 == 1
        wave = math.sin(number * 1.7)
        row = robot(
            name,
            slot='b' if is_candidate else 'a',
            policy=V2 if is_candidate else V1,
            queue_remaining_s=round(1.2 + 0.4 * wave, 1),
            action_age_s=round(0.3 + 0.15 * wave, 1),
        )
        rows[node_of(name)] = row | IN_TROUBLE.get(name, {})
    rows[node_of('robot_14')]['silent_since_ms'] = now_ms() - 12_000
    return rows


def example_sections() -> dict[str, dict[str, Row]]:
    """Return the document of the pictures: no guard is above its limit."""
    sections = {**fleet(), 'robots': example_robots()}
    guards = sections['routers']['/policy_router']['rollout']['guards']
    guards[3] = guard('from the fallback ladder', '0.8%, limit 2%, 60 % left', 0.6)
    return sections


def open_fleet(page: Page, _: str) -> None:
    page.wait_for_selector('.cell-name')


def open_rollout(page: Page, _: str) -> None:
    page.keyboard.press('2')
    page.wait_for_selector('.plot canvas')


def open_by_key(key: str, selector: str) -> Callable[[Page, str], None]:
    """Return a function that opens a view by its key and waits for what it shows."""

    def open_view(page: Page, _: str) -> None:
        page.keyboard.press(key)
        page.wait_for_selector(f'main {selector}')

    return open_view


def open_robot(page: Page, scheme: str) -> None:
    # the last minute of a robot begins when it is first looked at
    node = node_of({'dark': 'robot_1', 'light': 'robot_13'}[scheme])
    page.evaluate(f"location.hash = '#/robot/' + encodeURIComponent('{node}')")
    page.wait_for_selector('.joints canvas')
    loaded = "[...document.querySelectorAll('.cameras img')].every((each) => each.naturalWidth)"
    page.wait_for_function(loaded)


# name of the picture -> how to open the view, and the height of the picture
VIEWS = {
    'fleet': (open_fleet, HEIGHT),
    'rollout': (open_rollout, 920),
    'servers': (open_by_key('3', '.line:not(.head)'), 560),
    'incidents': (open_by_key('4', '.incident'), 560),
    'robot': (open_robot, 1000),
    'verdicts': (open_by_key('6', 'button'), 560),
}


def main() -> None:
    if not chromium_path():
        sys.exit('there is no Chromium: apt install chromium, or name one in CHROMIUM')
    server = PageServer(example_sections())
    try:
        with started_browser() as browser:
            for scheme in SCHEMES:
                for name, (open_view, height) in VIEWS.items():
                    with opened_tab(
                        browser, server.url, scheme=scheme, width=WIDTH, height=height
                    ) as tab:
                        open_view(tab.open(f'#token={TOKEN}'), scheme)
                        write(tab.page, FOLDER / f'dashboard_{name}_{scheme}.png')
    finally:
        server.close()


def write(page: Page, file: Path) -> None:
    """Write the picture. Raises SystemExit when it is too large for the repository."""
    # the bars and charts come to rest
    page.wait_for_timeout(1200)
    picture = Image.open(io.BytesIO(page.screenshot())).convert('RGB')
    # a third of the size; the rare colours stay
    few = picture.quantize(COLOURS, kmeans=COLOURS, dither=Image.Dither.NONE)
    few.save(file, optimize=True)
    size_bytes = file.stat().st_size
    if size_bytes > LARGEST_BYTES:
        sys.exit(f'{file} has {size_bytes} bytes; at most {LARGEST_BYTES} are kept')
    print(f'{file.relative_to(ROOT)}  {size_bytes / 1000:.0f} kB')


if __name__ == '__main__':
    main()
