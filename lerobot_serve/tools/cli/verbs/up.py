# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve up`: starts all processes of a fleet file in one terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TYPE_CHECKING

from lerobot_serve.errors import UserError
from lerobot_serve.state_folder import ros_home
from lerobot_serve.tools.cli.signature import Argument, verb_of

if TYPE_CHECKING:
    from lerobot_serve.child_process import Process
    from lerobot_serve.tools.fleet.process import FleetProcess

HELP = 'start the servers, router and robots of a fleet file in one terminal'
EXAMPLE = (
    'example: lerobot-serve up fleet.yaml  | lerobot-serve up two_robots, a fleet that comes with '
    'this package; exit status 1 when a process failed for good'
)
# for a reader that reads again
LAST_LINES_LIMIT_S = 2.0


def up(
    fleet: Annotated[
        str,
        Argument(
            'fleet file, or the name of a shipped one: one_robot, robot_alone, two_robots, '
            'two_versions',
            'FLEET',
        ),
    ],
    *,
    print_file: Annotated[bool, Argument('print the fleet file and end', either='shown')] = False,
    print_launch: Annotated[
        bool, Argument('print the same as a launch file and end', either='shown')
    ] = False,
    print_systemd: Annotated[
        str | None,
        Argument(
            'print the same as units of systemd, or write them into FOLDER, and end',
            'FOLDER',
            nargs='?',
            either='shown',
        ),
    ] = None,
) -> int:
    """Run the fleet until a signal, or print it. Raises UserError."""
    plan, path, text = planned(fleet)
    if print_file:
        print(text, end='')
        return 0
    if print_launch:
        from lerobot_serve.tools.fleet.printed_plans import launch_text

        print(launch_text(plan, path.name), end='')
        return 0
    if print_systemd is not None:
        return print_units(plan, path.stem, print_systemd)
    return run(plan)


def planned(fleet: str) -> tuple[tuple[FleetProcess, ...], Path, str]:
    """Return the processes of a fleet file, its path and its text. Raises UserError."""
    from lerobot_serve.tools.fleet.plan import fleet_plan
    from lerobot_serve.tools.fleet.process import with_own_state
    from lerobot_serve.tools.fleet.shipped import FLEETS, shipped_or_path

    path = shipped_or_path('fleet file', fleet, Path.cwd(), FLEETS)
    text = read_text(path)
    # what is printed is what `up` would start
    plan = fleet_plan(text, fleet, path.parent)
    return with_own_state(plan, path, ros_home().absolute()), path, text


def read_text(path: Path) -> str:
    """Return the text of the fleet file. Raises UserError."""
    try:
        return path.read_text('utf-8')
    except OSError as error:
        raise UserError(f'fleet file {path}: {error.strerror or error}') from error
    except ValueError as error:
        raise UserError(f'fleet file {path} is not UTF-8 text: {error}') from error


def print_units(plan: tuple[FleetProcess, ...], fleet: str, folder: str) -> int:
    """Print the units, or write them into the folder. Raises UserError."""
    import os

    from lerobot_serve.tools.fleet.printed_plans import unit_files
    from lerobot_serve.tools.processes import executable_path

    units = unit_files(
        plan, fleet, environment=os.environ, folder=Path.cwd(), executable=executable_path
    )
    if not folder:
        print('\n'.join(f'# {name}\n{text}' for name, text in units.items()), end='')
        return 0
    for name, text in units.items():
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(text)
        except OSError as error:
            raise UserError(f'{folder}/{name}: {error.strerror or error}') from error
    target = next(iter(units))
    print(f'{len(units)} units in {folder}; copy them to /etc/systemd/system and enable {target}')
    return 0


def run(plan: tuple[FleetProcess, ...]) -> int:
    """Start all processes, and end them after a signal; return the exit status."""
    import os
    import sys

    from lerobot_serve.tools.fleet.process_output import (
        PrefixedOutput,
        QueuedLines,
        wants_colours,
        write_all,
    )
    from lerobot_serve.tools.fleet.supervisor import Supervisor

    file, encoding = sys.stdout.fileno(), sys.stdout.encoding

    def write_line(text: str) -> None:
        # a name of a process or its output must not end the fleet
        write_all(file, text.encode(encoding, errors='backslashreplace'))

    lines = QueuedLines(write_line, lambda count: output.dropped_line(count))
    output = PrefixedOutput(
        lines.write,
        [process.name for process in plan],
        colours=wants_colours(sys.stdout, dict(os.environ)),
    )
    try:
        return Supervisor(plan, start_process, output).run()
    finally:
        lines.close(LAST_LINES_LIMIT_S)


def start_process(process: FleetProcess) -> Process[bytes]:
    """Start one process; it ends with this one. Main thread. Raises UserError."""
    import os
    import sys

    from lerobot_serve.child_process import DEVNULL, PIPE, start, STDOUT
    from lerobot_serve.tools.fleet.process import Stage
    from lerobot_serve.tools.processes import end_with_parent, executable_path

    command = [str(executable_path(process.executable)), *process.arguments]
    if process.stage is Stage.DASHBOARD and sys.stdout.isatty():
        # its own output is a pipe, which ends on this terminal
        command.append('--print-token')
    return start(
        end_with_parent(command),
        stdout=PIPE,
        stderr=STDOUT,
        stdin=DEVNULL,
        env={**os.environ, 'PYTHONUNBUFFERED': '1'},
        # Ctrl-C reaches this process alone, which ends the others in order
        start_new_session=True,
    )


add_arguments, main = verb_of(up)
