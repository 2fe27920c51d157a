# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve rerun`: shows a bag or live robots in the Rerun viewer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
import signal
import sys
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.entry_points import SIGNALS
from lerobot_serve.tools.cli.arguments import (
    DEFAULT_SITE,
    Endpoints,
    OBSERVED,
    ObserverOptions,
)
from lerobot_serve.tools.cli.operator_options import robot_names
from lerobot_serve.tools.cli.signature import Argument, verb_of

if TYPE_CHECKING:
    from lerobot_serve.tools.bags.write_queue import WriteQueue
    from lerobot_serve.tools.rerun_view.message_mapping import MessageMapping
    from lerobot_serve.tools.rerun_view.message_view import MessageView
    from lerobot_serve.tools.rerun_view.node import RerunViewNode
    from lerobot_serve.tools.rerun_view.rerun_sink import RerunSink
    from lerobot_serve.zenoh.settings import ZenohSettings

HELP = 'show a bag or live robots in the Rerun viewer: cameras, joints, events, policies'
# the node of a live view handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
EXAMPLE = (
    'example: lerobot-serve rerun bags/monday --save monday.rrd  | live: lerobot-serve rerun '
    '--robot robot_7; Ctrl-C ends it, and a file is whole then'
)
# plots of a live view show so much before the cursor
LIVE_WINDOW_S = 20.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown, and where."""

    robot: Annotated[
        str, Argument('show only this robot (all robots)', 'NAME', names=robot_names)
    ] = ''
    save: Annotated[
        Path | None,
        Argument('write a file, which must not exist yet', 'FILE.rrd', either='where'),
    ] = None
    viewer: Annotated[
        str,
        Argument(
            'show it in a viewer that runs, such as rerun+http://192.168.1.5:9876/proxy (a viewer '
            'of this machine, which is started)',
            'URL',
            either='where',
        ),
    ] = ''

    def open_sink(self, name: str, *, is_live: bool) -> RerunSink:
        """Open the file or the viewer of the command line. Raises UserError."""
        from lerobot_serve.tools.rerun_view.destinations import open_sink

        return open_sink(
            name,
            save=self.save,
            viewer=self.viewer,
            window_s=LIVE_WINDOW_S if is_live else 0.0,
            is_live=is_live,
        )

    def discard_file(self) -> None:
        """Remove the file of a view that shows nothing."""
        if self.save:
            self.save.unlink(missing_ok=True)


def rerun(
    bag: Annotated[
        Path | None, Argument('folder or file of a bag (without one: what passes now)', 'BAG')
    ] = None,
    *,
    shown: Shown,
    connect: Annotated[Endpoints, Argument(f'live: show {OBSERVED}', 'ENDPOINT', nargs='+')] = (),
    observer: ObserverOptions,
) -> int:
    """Show a bag or live robots; return the exit status. Raises ParameterError, UserError."""
    from lerobot_serve.parameters import ParameterError

    rerun_schemes = [each for each in connect if each.startswith('rerun')]
    if rerun_schemes:
        raise ParameterError(
            f'--connect has Zenoh endpoints; give a viewer as --viewer {rerun_schemes[0]}'
        )
    if bag and (connect or observer.keys or observer.site != DEFAULT_SITE):
        raise ParameterError('--connect, --site and --keys are of a live view; leave BAG out')
    zenoh = observer.settings(connect)
    # slow: after what may be refused
    from lerobot_serve.tools.rerun_view.message_mapping import MessageMapping

    mapping = MessageMapping(shown.robot)
    status = show_bag(bag, shown, mapping) if bag else show_live(shown, mapping, zenoh)
    for what, count in sorted(mapping.not_shown.items()):
        print(f'{count:>9}  not shown: {what}')
    return status


def show_bag(path: Path, shown: Shown, mapping: MessageMapping) -> int:
    """Show a bag; return the exit status. Raises UserError."""
    from lerobot_serve.errors import UserError
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.tools.bags.reader import Bag
    from lerobot_serve.tools.rerun_view.message_view import MessageView
    from lerobot_serve.tools.rerun_view.message_view import show_bag as show

    view = None
    try:
        bag = Bag(path)
        sink = shown.open_sink(path.resolve().name, is_live=False)
        view = MessageView(mapping, sink)
        is_whole = show(bag, view, is_stopped)
        if is_whole:
            mapping.check_robot()
    except (BagError, UserError, OSError) as error:
        if view and (isinstance(error, UserError) or not mapping.shown_messages):
            shown.discard_file()
        where = f'{view.destination}: ' if view and isinstance(error, OSError) else ''
        raise UserError(f'{where}{error}') from error
    for text in bag.damage:
        print(f'{path}: {text}', file=sys.stderr)
    print_end(view, 'end of the bag' if is_whole else 'interrupted')
    return 0 if is_whole else 130


def show_live(shown: Shown, mapping: MessageMapping, zenoh: ZenohSettings | None) -> int:
    """Show live robots until a signal; return the exit status. Raises UserError."""
    from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
    from lerobot_serve.tools.rerun_view.node import RerunViewNode

    nodes: list[RerunViewNode] = []

    def create(runtime: NodeRuntime) -> RerunViewNode:
        sink = shown.open_sink(shown.robot or 'live robots', is_live=True)
        try:
            node = RerunViewNode(runtime, mapping, sink, zenoh)
        except BaseException:
            sink.abort()
            shown.discard_file()
            raise
        nodes.append(node)
        print(f'showing {shown.robot or "all robots"} in {sink.destination}; Ctrl-C ends it')
        return node

    status = run(create, [])
    return finish_live(nodes[0], shown, status) if nodes else status


def finish_live(node: RerunViewNode, shown: Shown, status: int) -> int:
    """Print how a live view ended; return the exit status. Raises UserError."""
    recording: WriteQueue = node.recording
    if node.view.refusal:
        shown.discard_file()
        raise node.view.refusal
    if recording.dropped:
        print(f'{recording.dropped} messages dropped: viewer or disk too slow')
    if recording.failed:
        print(f'error: {recording.ended}', file=sys.stderr)
        return 1
    print_end(node.view, f'ended {recording.ended}')
    return status or int(bool(recording.dropped))


def is_stopped() -> bool:
    """Return whether SIGINT or SIGTERM came, which wait since the start (HOLDS_SIGNALS)."""
    return signal.sigtimedwait(SIGNALS, 0) is not None


def print_end(view: MessageView, how: str) -> None:
    shown = view.mapping.shown_messages
    print(f'{view.destination}: {shown} of {view.messages} messages shown; {how}')


add_arguments, main = verb_of(rerun)
