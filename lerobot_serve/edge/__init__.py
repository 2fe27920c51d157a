"""
The half of the work that touches the robot. Carries no weights and never imports torch.

    robot/        what the robot is: its file, its limits, its commands as messages
    inputs, history, frames   what it senses, now and at the steps before
    requester     the thread that asks: whom, when, and what when nobody answers
    exchange, ledger, answers one request at a time, and which answers count
    states, servers           the connection as a table; whom to ask next
    queue/        what is left to play; delays, interpolation, latency
    ladder, rungs, ramp       what is done when there is nothing to play
    controller, playing       one control step: authority, queue, ladder, cage
    whereabouts, holding, pacing  where the robot is, moved by hand, and no two steps at once
    ticker        the thread that commands: one control step after the other
    journey       what was commanded, row by row, for the next request to tell
    authority     who commands in a control step, and which motion is allowed: one table
    operation, episodes, runs what people and episodes decide; runs of one task
    link, outside what the requester needs of the outside, and the real one
    listener, recorder        what the others tell of themselves, and the trace of it
    step_recorder, outcomes   of each control step; how episodes ended
    metrics, tally, reports   what others see: Prometheus, rqt
    node          the wiring to ROS
"""
