# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve rerun`: shows a bag or live robots in the Rerun viewer."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
import contextlib
from pathlib import Path
import sys
from typing import TYPE_CHECKING

from lerobot_serve.tools.cli.link_options import (
    add_observer_options,
    DEFAULT_SITE,
    observer_settings,
)

if TYPE_CHECKING:
    from lerobot_serve.tools.bags.recording.write_queue import WriteQueue
    from lerobot_serve.tools.rerun_view.mapping.message_mapping import MessageMapping
    from lerobot_serve.tools.rerun_view.message_view import MessageView
    from lerobot_serve.tools.rerun_view.node import RerunViewNode
    from lerobot_serve.tools.rerun_view.rerun_sink import RerunSink

HELP = 'show a bag or live robots in the Rerun viewer: cameras, joints, events, policies'
# the node of a live view handles SIGINT and SIGTERM itself
HOLDS_SIGNALS = True
EXAMPLE = (
    'example: lerobot-serve rerun bags/monday --save monday.rrd  | live: lerobot-serve rerun '
    '--robot robot_7; Ctrl-C ends it, and a file is whole then'
)
# plots of a live view show so much before the cursor
LIVE_WINDOW_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from lerobot_serve.tools.cli.operator_options import robot_names, set_completer

    parser.add_argument(
        'bag',
        metavar='BAG',
        nargs='?',
        type=Path,
        help='folder or file of a bag (without one: what passes now)',
    )
    robot = parser.add_argument(
        '--robot', default='', metavar='NAME', help='show only this robot (all robots)'
    )
    set_completer(robot, robot_names)
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        '--save', type=Path, metavar='FILE.rrd', help='write a file, which must not exist yet'
    )
    where.add_argument(
        '--viewer',
        default='',
        metavar='URL',
        help='show it in a viewer that runs, such as rerun+http://192.168.1.5:9876/proxy (a '
        'viewer of this machine, which is started)',
    )
    add_observer_options(parser, 'live: show')


def main(options: argparse.Namespace) -> int:
    """Show a bag or live robots; return the exit status. Raises ParameterError, UserError."""
    check(options)
    from lerobot_serve.tools.rerun_view.mapping.message_mapping import MessageMapping

    mapping = MessageMapping(options.robot)
    status = show_bag(options, mapping) if options.bag else show_live(options, mapping)
    for what, count in sorted(mapping.not_shown.items()):
        print(f'{count:>9}  not shown: {what}')
    return status


def check(options: argparse.Namespace) -> None:
    """Raise ParameterError for options that do not fit."""
    from lerobot_serve.parameters import ParameterError

    rerun_schemes = [each for each in options.connect if each.startswith('rerun')]
    if rerun_schemes:
        raise ParameterError(
            f'--connect has Zenoh endpoints; give a viewer as --viewer {rerun_schemes[0]}'
        )
    if options.bag and (options.connect or options.keys or options.site != DEFAULT_SITE):
        raise ParameterError('--connect, --site and --keys are of a live view; leave BAG out')
    observer_settings(options)


def show_bag(options: argparse.Namespace, mapping: MessageMapping) -> int:
    """Show a bag; return the exit status. Raises UserError."""
    from lerobot_serve.errors import UserError
    from lerobot_serve.tools.bags.message import BagError
    from lerobot_serve.tools.bags.reader import Bag
    from lerobot_serve.tools.rerun_view.message_view import MessageView
    from lerobot_serve.tools.rerun_view.message_view import show_bag as show

    view = None
    try:
        bag = Bag(options.bag)
        with stop_on_signals() as is_stopped:
            sink = open_sink(options, options.bag.resolve().name, is_live=False)
            view = MessageView(mapping, sink)
            is_whole = show(bag, view, is_stopped)
        if is_whole:
            mapping.check_robot()
    except (BagError, UserError, OSError) as error:
        if view and (isinstance(error, UserError) or not mapping.shown_messages):
            discard_file(options)
        where = f'{view.destination}: ' if view and isinstance(error, OSError) else ''
        raise UserError(f'{where}{error}') from error
    for text in bag.damage:
        print(f'{options.bag}: {text}', file=sys.stderr)
    print_end(view, 'end of the bag' if is_whole else 'interrupted')
    return 0 if is_whole else 130


def show_live(options: argparse.Namespace, mapping: MessageMapping) -> int:
    """Show live robots until a signal; return the exit status. Raises UserError."""
    from lerobot_serve.ros.process.node_runtime import NodeRuntime, run
    from lerobot_serve.tools.rerun_view.node import RerunViewNode

    nodes: list[RerunViewNode] = []
    zenoh = observer_settings(options)

    def create(runtime: NodeRuntime) -> RerunViewNode:
        sink = open_sink(options, options.robot or 'live robots', is_live=True)
        try:
            node = RerunViewNode(runtime, mapping, sink, zenoh)
        except BaseException:
            sink.abort()
            discard_file(options)
            raise
        nodes.append(node)
        print(f'showing {options.robot or "all robots"} in {sink.destination}; Ctrl-C ends it')
        return node

    status = run(create, [])
    return finish_live(nodes[0], options, status) if nodes else status


def finish_live(node: RerunViewNode, options: argparse.Namespace, status: int) -> int:
    """Print how a live view ended; return the exit status. Raises UserError."""
    recording: WriteQueue = node.recording
    if node.view.refusal:
        discard_file(options)
        raise node.view.refusal
    if recording.dropped:
        print(f'{recording.dropped} messages dropped: viewer or disk too slow')
    if recording.failed:
        print(f'error: {recording.ended}', file=sys.stderr)
        return 1
    print_end(node.view, f'ended {recording.ended}')
    return status or int(bool(recording.dropped))


def open_sink(options: argparse.Namespace, name: str, *, is_live: bool) -> RerunSink:
    """Open the file or the viewer of the command line. Raises UserError."""
    from lerobot_serve.tools.rerun_view.destinations import open_sink as open_destination

    return open_destination(
        name,
        save=options.save,
        viewer=options.viewer,
        window_s=LIVE_WINDOW_S if is_live else 0.0,
        is_live=is_live,
    )


def discard_file(options: argparse.Namespace) -> None:
    """Remove the file of a view that shows nothing."""
    if options.save:
        options.save.unlink(missing_ok=True)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM came while the block runs."""
    import signal
    import threading

    from lerobot_serve.entry_points import SIGNALS

    received, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if signal.sigtimedwait(SIGNALS, 0.1):
                received.set()

    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    watcher = threading.Thread(target=watch, name='signals', daemon=True)
    watcher.start()
    try:
        yield received.is_set
    finally:
        ended.set()
        watcher.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def print_end(view: MessageView, how: str) -> None:
    shown = view.mapping.shown_messages
    print(f'{view.destination}: {shown} of {view.messages} messages shown; {how}')
