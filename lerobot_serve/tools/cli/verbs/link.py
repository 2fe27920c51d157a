# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve link`: shows who is on a Zenoh link, and what each key carries."""

from __future__ import annotations

from typing import Annotated

from lerobot_serve.tools.cli.arguments import Endpoints, LinkOptions
from lerobot_serve.tools.cli.signature import Argument, number, verb_of
from lerobot_serve.tools.output.report import Report

HELP = 'show servers, routers and robots on a Zenoh link, rates and round trips'
EXAMPLE = (
    'example: lerobot-serve link --connect tcp/192.168.1.10:7447 --seconds 5  | exit status 0 '
    'when a server responds, 1 when none does, with the reason'
)
CONNECT = 'tcp/127.0.0.1:7447'


def link(
    *,
    connect: Annotated[
        Endpoints,
        Argument(
            'of servers, routers or Zenoh routers; all that passes there is shown '
            f'({CONNECT} unless --listen is given)',
            'ENDPOINT',
            nargs='+',
        ),
    ] = (),
    options: LinkOptions,
    seconds: Annotated[float, Argument('how long to watch [s]', 'N', number('s', 3600.0))] = 3.0,
) -> Report:
    """Watch the link. Raises UserError."""
    from lerobot_serve.tools.link.survey import link_report
    from lerobot_serve.tools.link.watch import LinkWatch

    settings = options.settings(connect or ([] if options.listen else [CONNECT]))
    with LinkWatch(settings, options.client, tuple(options.servers)) as watch:
        return link_report(watch.survey(seconds))


add_arguments, main = verb_of(link)
