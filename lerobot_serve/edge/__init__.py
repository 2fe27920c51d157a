"""
The half that touches the robot: no weights, no torch, and a rule for every way in which the other
half may fail.

    robot       what the robot is: joints, cameras, limits, from one YAML file
    inputs      the newest of every input, and how old it is
    history     the inputs of the last control steps
    frames      the frames of an observation, encoded
    ledger      the one request in flight, and which answer counts
    queue       the actions that are left to play
    cage        the last check before a command leaves
    commands    the command as a message
    controller  one control step: queue, staleness, cage
    answers     what a server's answers must hold to be used
    requester   the thread that opens the session and asks for chunks
    node        the wiring to ROS
"""
