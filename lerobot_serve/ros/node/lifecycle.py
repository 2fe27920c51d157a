"""
A managed node: the standard lifecycle of ROS 2, whose transitions cannot hurt the process.

rclpy's own node ends its executor when a transition is asked for that the present state does not
allow, swallows what a transition raises, and answers nothing else while one goes on. Here a
transition that is not allowed is refused, what it raises is told, and who asks for one waits for a
thread of its own, so that the executor answers the others meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from functools import partial
import threading

from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.lifecycle import LifecycleState, TransitionCallbackReturn
from rclpy.lifecycle.node import LifecycleNodeMixin

from lerobot_serve.ros.node.executor_future import ExecutorFuture
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.ros.process.rcl_errors import readable_rcl_error

SUCCESS = TransitionCallbackReturn.SUCCESS
FAILURE = TransitionCallbackReturn.FAILURE
TRANSITIONS = {
    'configure': Transition.TRANSITION_CONFIGURE,
    'activate': Transition.TRANSITION_ACTIVATE,
    'deactivate': Transition.TRANSITION_DEACTIVATE,
    'cleanup': Transition.TRANSITION_CLEANUP,
}
# these may take long, and nobody waits for them at the end; the others have a bound of their own
NOT_AWAITED = (
    State.TRANSITION_STATE_CONFIGURING,
    State.TRANSITION_STATE_ACTIVATING,
    State.TRANSITION_STATE_CLEANINGUP,
)
POLL_PERIOD_S = 0.1


class TransitionRefused(Exception):
    """The present state does not allow the transition, or another one goes on."""


class LifecycleNode(LifecycleNodeMixin, SteadyClockNode):
    """
    Subclasses define `configure`, `activate`, `deactivate` and `cleanup`: they return when done
    and raise when it cannot be done. One transition at a time, in the thread that calls `step` or
    in one of its own when a service asks for it.
    """

    def __init__(self, name: str, runtime: NodeRuntime) -> None:
        SteadyClockNode.__init__(self, name, context=runtime.context)
        self._runtime = runtime
        self._transition = threading.Lock()
        self.failure = ''
        self._failed_at = ''
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        self._raw_change_state = self._service_change_state.callback
        self._service_change_state.callback = self._on_change_state

    @property
    def lifecycle_state(self) -> int:
        """State.PRIMARY_STATE_*, or a transition state; any thread."""
        return self._state_machine.current_state[0]

    def step(self, name: str) -> bool:
        """
        Go through one of STEPS; return False when it failed, with `failure` set.

        Raises TransitionRefused.
        """
        with self._one_at_a_time():
            self.failure = ''
            try:
                outcome = getattr(self, f'trigger_{name}')()
            except rclpy_implementation.RCLError as error:
                raise TransitionRefused(readable_rcl_error(str(error))) from error
            self._expect(is_done=outcome is SUCCESS)
        return not self.failure

    def end(self) -> None:
        """
        Deactivate, if active, or wait for whoever does so; for the end of the process, which
        frees the rest.
        """
        if self.lifecycle_state not in NOT_AWAITED:
            self._wait_for_transition()
        if self.lifecycle_state == State.PRIMARY_STATE_ACTIVE:
            # somebody else may be first
            with contextlib.suppress(TransitionRefused):
                self.step('deactivate')
                self._log_failure()

    def _wait_for_transition(self) -> None:
        """Wait until who asked for it is answered, or nobody will be any more."""
        while not self._runtime.stop.is_set():
            if self._transition.acquire(timeout=POLL_PERIOD_S):
                self._transition.release()
                return

    # what rclpy calls

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told('configure', self.configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told('activate', self.activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told('deactivate', self.deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._told('clean up', self.cleanup)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if state.state_id == State.PRIMARY_STATE_ACTIVE:
            self._told('deactivate', self.deactivate)
        if state.state_id != State.PRIMARY_STATE_UNCONFIGURED:
            self._told('clean up', self.cleanup)
        return SUCCESS

    def _told(self, what: str, act: Callable[[], None]) -> TransitionCallbackReturn:
        self.failure = ''
        try:
            act()
        except Exception as error:
            # the text alone: the error would keep what it happened to alive
            self.failure = str(error) or type(error).__name__
            self._failed_at = what
            return FAILURE
        return SUCCESS

    def _log_failure(self) -> None:
        if self.failure:
            self.get_logger().error(f'cannot {self._failed_at}: {self.failure}')

    def _expect(self, *, is_done: bool) -> None:
        """Raise TransitionRefused for what was not even begun, where rclpy itself does not."""
        if not is_done and not self.failure:
            raise TransitionRefused('this state does not allow it')

    def _one_at_a_time(self) -> TransitionLock:
        return TransitionLock(self._transition)

    async def _on_change_state(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        done = ExecutorFuture(self.executor)
        change = partial(done.keep, partial(self._raw_change_state, request, response))
        try:
            with self._one_at_a_time():
                self.failure = ''
                self._runtime.thread('transition', change)
                await done
                self._expect(is_done=response.success)
                self._log_failure()
                return response
        except (rclpy_implementation.RCLError, TransitionRefused) as error:
            asked = request.transition.label or request.transition.id
            state = self._state_machine.current_state[1]
            self.get_logger().warning(
                f'transition {asked!r} refused in state {state!r}: {readable_rcl_error(str(error))}'
            )
            response.success = False
            return response


class TransitionLock:
    """Holds a lock that nobody waits for."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise TransitionRefused('another transition is going on; try again when it is done')

    def __exit__(self, *_: object) -> None:
        self._lock.release()
