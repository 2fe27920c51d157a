# SPDX-License-Identifier: Apache-2.0
"""
A managed node with the standard ROS 2 lifecycle; a failed transition never ends the process.

rclpy's own node ends its executor at a transition that the current state does not allow, swallows
exceptions of transitions, and blocks the executor during one. This node rejects such a transition,
logs the exception, and runs each requested transition in a thread of its own, so that the executor
keeps serving other requests.
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

from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.executor import ExecutorFuture
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
# these may take long, and the exit does not wait for them; the others are bounded
NOT_AWAITED = (
    State.TRANSITION_STATE_CONFIGURING,
    State.TRANSITION_STATE_ACTIVATING,
    State.TRANSITION_STATE_CLEANINGUP,
)
POLL_PERIOD_S = 0.1


class TransitionRefused(Exception):
    """The current state does not allow the transition, or another one is in progress."""


class LifecycleNode(LifecycleNodeMixin, SteadyClockNode):
    """
    Subclasses define `configure`, `activate`, `deactivate` and `cleanup`, which return when done
    and raise on failure. One transition at a time, in the thread that calls `run_transition` or,
    when a service requests it, in a thread of its own.
    """

    def __init__(self, name: str, runtime: NodeRuntime) -> None:
        SteadyClockNode.__init__(self, name, context=runtime.context)
        self._runtime = runtime
        self._transition_lock = threading.Lock()
        self.failure = ''
        self._failed_transition = ''
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        self._raw_change_state = self._service_change_state.callback
        self._service_change_state.callback = self._on_change_state

    @property
    def lifecycle_state(self) -> int:
        """State.PRIMARY_STATE_*, or a transition state; any thread."""
        state: int = self._state_machine.current_state[0]
        return state

    def run_transition(self, name: str) -> bool:
        """
        Run one of TRANSITIONS; return False when it failed, with `failure` set.

        Raises TransitionRefused.
        """
        with self._single_transition():
            self.failure = ''
            try:
                outcome = getattr(self, f'trigger_{name}')()
            except rclpy_implementation.RCLError as error:
                raise TransitionRefused(readable_rcl_error(str(error))) from error
            self._require_allowed(is_done=outcome is SUCCESS)
        return not self.failure

    def deactivate_at_exit(self) -> None:
        """
        Deactivate if active, or wait for a deactivation in progress. Called at the end of the
        process, which frees the rest.
        """
        if self.lifecycle_state not in NOT_AWAITED:
            self._wait_for_transition()
        if self.lifecycle_state == State.PRIMARY_STATE_ACTIVE:
            # a service request may have deactivated the node already
            with contextlib.suppress(TransitionRefused):
                self.run_transition('deactivate')
                self._log_failure()

    def destroy_node(self) -> None:
        """
        Destroy the node and its state machine; rclpy keeps the latter and thereby the participant.
        """
        super().destroy_node()
        # not under a transition that the exit does not wait for; none begins afterwards
        if self._transition_lock.acquire(blocking=False):
            self._state_machine.destroy_when_not_in_use()

    def _wait_for_transition(self) -> None:
        """Wait until the transition in progress ends or the process stops."""
        while not self._runtime.stop.is_set():
            if self._transition_lock.acquire(timeout=POLL_PERIOD_S):
                self._transition_lock.release()
                return

    # implemented by the subclass

    def configure(self) -> None:
        """Acquire what the node needs to be activated."""
        raise NotImplementedError

    def activate(self) -> None:
        """Begin to serve."""
        raise NotImplementedError

    def deactivate(self) -> None:
        """Stop serving."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Release what `configure` acquired."""
        raise NotImplementedError

    # called by rclpy

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._run_callback('configure', self.configure)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._run_callback('activate', self.activate)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._run_callback('deactivate', self.deactivate)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._run_callback('clean up', self.cleanup)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if state.state_id == State.PRIMARY_STATE_ACTIVE:
            self._run_callback('deactivate', self.deactivate)
        if state.state_id != State.PRIMARY_STATE_UNCONFIGURED:
            self._run_callback('clean up', self.cleanup)
        return SUCCESS

    def _run_callback(
        self, transition: str, callback: Callable[[], None]
    ) -> TransitionCallbackReturn:
        try:
            callback()
        except Exception as error:
            if not self.failure:
                # only the text: the exception would keep the objects in its frames alive
                self.failure = str(error) or type(error).__name__
                self._failed_transition = transition
            return FAILURE
        return SUCCESS

    def _log_failure(self) -> None:
        if self.failure:
            self.get_logger().error(f'cannot {self._failed_transition}: {self.failure}')

    def _require_allowed(self, *, is_done: bool) -> None:
        """
        Raise TransitionRefused for a transition that did not begin; rclpy does not report it.
        """
        if not is_done and not self.failure:
            raise TransitionRefused('not allowed in this state')

    def _single_transition(self) -> TransitionLock:
        return TransitionLock(self._transition_lock)

    async def _on_change_state(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        done = ExecutorFuture(self.executor)
        change = partial(done.complete_with, partial(self._raw_change_state, request, response))
        try:
            with self._single_transition():
                self.failure = ''
                self._runtime.thread('transition', change)
                await done
                self._require_allowed(is_done=response.success)
                self._log_failure()
                return response
        except (rclpy_implementation.RCLError, TransitionRefused) as error:
            requested = request.transition.label or request.transition.id
            state = self._state_machine.current_state[1]
            self.get_logger().warning(
                f'transition {requested!r} rejected in state {state!r}: '
                f'{readable_rcl_error(str(error))}'
            )
            response.success = False
            return response


class TransitionLock:
    """Holds a lock without waiting; raises TransitionRefused when it is taken."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise TransitionRefused('another transition is in progress; retry when it has ended')

    def __exit__(self, *_: object) -> None:
        self._lock.release()
