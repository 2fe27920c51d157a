"""
The control step: who has control authority, which action is next, what the cage lets through.
Called by `ControlLoop.run`, the body of the thread `tick`; operators and episodes set
OperatorControl from the executor. Plain: no clock, no ROS; state, commands and the stop service
come in as callables.
"""
