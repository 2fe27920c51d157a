# SPDX-License-Identifier: Apache-2.0
"""
Run the commands of the page by the functions of the verbs. Threads of its own, at most COMMANDS.

A command is done in the state that the person has read: the text of now must be the text that was
confirmed. One command runs at a time for each node. A rollout begins and ends in a thread of its
own, since servers load policies for minutes; the document has its newest line (`Loading`).
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import asdict, dataclass, replace
import itertools
import threading
import traceback
from typing import Any

from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.tools.dashboard import planned_commands as commands
from lerobot_serve.tools.dashboard.document.rows import effect_of
from lerobot_serve.tools.dashboard.planned_commands import (
    BadRequest,
    CommandRequest,
    FleetStates,
    planned,
    Reply,
)
from lerobot_serve.tools.operate import operations
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.outcome import NotReached, Result, ResultUnknown
from lerobot_serve.tools.operate.rollout import rollouts
from lerobot_serve.tools.operate.rollout.replica_loading import ServerLoader
from lerobot_serve.tools.operate.rule import changed_text
from lerobot_serve.tools.output.text import without_controls

# as the verb waits for a server; an episode that runs in slot a may last as long as the second
LOAD_LIMIT_S, EPISODE_LIMIT_S = 300.0, 60.0
RUNS, DONE, FAILED, UNKNOWN = 'runs', 'done', 'failed', 'unknown'
STATUSES = {DONE: 200, FAILED: 409, UNKNOWN: 504}


@dataclass(frozen=True, slots=True)
class Loading:
    """One `rollout start` or `rollout finish` of the page, and the newest line about it."""

    number: int
    verb: str
    by: str
    text: str
    state: str = RUNS
    changes: tuple[str, ...] = ()


ReportStep = Callable[[Loading], object]


def without_result(begun: Loading, reason: str) -> Loading:
    """Return the end of a step about which nothing is known."""
    text = f'the result is not known ({reason}); look at the state of the router'
    return replace(begun, text=text, state=UNKNOWN)


def run_loading(
    client: FleetClient, node: str, request: CommandRequest, begun: Loading, report: ReportStep
) -> Loading:
    """Run the verb by the functions of the command line; report each step, return the end."""

    def on_step(line: str) -> None:
        report(replace(begun, text=line))

    try:
        done = _result(client, node, request, on_step)
    except (UserError, ResultUnknown) as error:
        state = UNKNOWN if isinstance(error, ResultUnknown) else FAILED
        return replace(begun, text=str(error), state=state)
    changes = tuple(done.changes)
    return replace(begun, by=done.by, text=done.text, state=DONE, changes=changes)


def _result(
    client: FleetClient, node: str, request: CommandRequest, report: Callable[[str], None]
) -> Result:
    before, loader = client.router(node), ServerLoader(client, LOAD_LIMIT_S, report)
    if request.verb == commands.START:
        steps = rollouts.parsed_plan(request.rollout_plan)
        return rollouts.start(loader, before, request.policy, steps, reason=request.reason)
    return rollouts.finish(loader, before, reason=request.reason)


COMMANDS, CALL_LIMIT_S = 8, 5.0
# opens a client of an operator of this name, for calls of at most so long [s]
OpenClient = Callable[[str, float], FleetClient]


class FreshFleet:
    """The states by a client, waited for; see FleetStates."""

    def __init__(self, client: FleetClient, known: FleetStates) -> None:
        self._client, self._known = client, known

    def router(self, node: str) -> RouterView:
        # a name that is not there is refused without a wait
        self._known.router(node)
        return self._client.router(node)

    def plan(self, router: str) -> CanaryPlan | None:
        return operations.read_settings(self._client, router).plan

    def robot(self, node: str) -> RobotView:
        known = self._known.robot(node)
        # the latched state of a robot that hangs would pass for a new one
        if known.is_silent:
            return known
        found = self._client.wait_for_robot(node, lambda _: True)
        if found is None:
            raise NotReached(
                f'{node} publishes no state within {self._client.timeout_s:g} s: it was killed or '
                'hangs. Nothing was changed'
            )
        return found

    def robots(self) -> list[RobotView]:
        return self._known.robots()

    def router_of_episode(self, episode_id: str) -> str:
        return self._known.router_of_episode(episode_id)


class CommandRunner:
    """Any thread."""

    def __init__(
        self,
        fleet: FleetStates,
        open_client: OpenClient,
        log: Callable[[str], object],
        on_outcome: Callable[[str, str], object],
        on_loading: Callable[[str, Loading], object],
    ) -> None:
        """
        `on_outcome` hears of each outcome that counts, `on_loading` of each step of a rollout that
        begins or ends at a router.
        """
        self._fleet, self._open_client, self._log = fleet, open_client, log
        self._on_outcome, self._on_loading = on_outcome, on_loading
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._busy: set[str] = set()

    def run(self, request: CommandRequest, name: str, remote: str) -> Reply:
        """Preview or run a command of a person `name` at the address `remote`."""
        try:
            if request.confirm is None:
                now = planned(request, self._fleet)
                return Reply(200, {'done': False, **effect_of(now.rule), 'text': now.text})
            reply = self._run_alone(request, name, remote)
        except BadRequest as error:
            return _error(400, str(error))
        except UserError as error:
            reply = _error(409, str(error))
        except ResultUnknown as unknown:
            reply = _error(504, str(unknown))
        if request.confirm is not None:
            self._note(request, name, remote, reply)
        return reply

    def _run_alone(self, request: CommandRequest, name: str, remote: str) -> Reply:
        by = f'{name} (dashboard)'
        now = planned(request, self._fleet)
        with contextlib.ExitStack() as held:
            held.enter_context(self._held(now.node))
            with self._open_client(by, CALL_LIMIT_S) as client:
                now = planned(request, FreshFleet(client, self._fleet))
                if refusal := changed_text(request.confirm or '', now.text):
                    raise UserError(refusal)
                if not operations.checked(now.rule):
                    result = Result(request.verb, now.node, f'nothing to do: {now.text}', by)
                elif now.run:
                    result = now.run(client)
                    if request.verb == commands.OUTCOME:
                        self._on_outcome(request.target, request.outcome)
                else:
                    begun = Loading(next(self._numbers), request.verb, by, now.text)
                    self._start_loading(request, now.node, begun, (name, remote), held.pop_all())
                    return Reply(202, {'done': False, 'by': by, **asdict(begun)})
        body = {'done': True, 'text': result.text, 'by': result.by, 'changes': result.changes}
        return Reply(200, body)

    def _start_loading(
        self,
        request: CommandRequest,
        node: str,
        begun: Loading,
        whose: tuple[str, str],
        held: contextlib.ExitStack,
    ) -> None:
        """Load in a thread, which holds the node until its end. It dies with the process."""

        def load() -> None:
            end = without_result(begun, 'its thread ended early')
            try:
                with held:
                    end = self._load(request, node, begun)
                    self._note(request, *whose, Reply(STATUSES[end.state], asdict(end)))
            finally:
                # the next command may come as soon as this is seen
                self._on_loading(node, end)

        threading.Thread(target=load, name='loading', daemon=True).start()

    def _load(self, request: CommandRequest, node: str, begun: Loading) -> Loading:
        """Return the end of a rollout's step, whatever happens: the page waits for it."""

        def report(step: Loading) -> None:
            self._on_loading(node, step)

        try:
            report(begun)
            with self._open_client(begun.by, EPISODE_LIMIT_S) as client:
                return run_loading(client, node, request, begun, report)
        except Exception as error:
            # its message may hold texts of people
            self._log(without_controls(traceback.format_exc()))
            return without_result(begun, repr(error))

    @contextlib.contextmanager
    def _held(self, node: str) -> Any:
        """Hold a node, so that one command at a time changes it. Raises UserError."""
        with self._lock:
            if node in self._busy:
                raise UserError(
                    f'another command runs on {node}; look at its effect first. Nothing was '
                    'changed'
                )
            self._busy.add(node)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(node)

    def _note(self, request: CommandRequest, name: str, remote: str, reply: Reply) -> None:
        """Log who did what from where, and how it ended; texts of people hold no line ends."""
        text = reply.body.get('text') or reply.body.get('error', '')
        words = filter(None, (request.verb, request.target, request.slot, request.outcome))
        self._log(
            without_controls(
                f'command of {name} from {remote}: {" ".join(words)}'
                f'{f" ({request.reason})" if request.reason else ""}: {reply.status} {text}'
            )
        )


def _error(status: int, text: str) -> Reply:
    return Reply(status, {'error': text})
