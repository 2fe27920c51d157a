"""
Learned robot policies, served from GPU machines to robots that carry no weights.

Rooms and the one direction in which they may know each other (held by
test/unit/package/test_architecture.py):

    wire        messages <-> arrays, header peek, image codec, names  knows only numpy
    parameters  what a parameter of a node is                         knows nothing
    policies    what a policy is; loading and running one             -> wire; alone imports torch
    trace       what happened, written down and read                  -> wire, parameters
    telemetry   figures for Prometheus, alive and ready over HTTP     -> parameters
    server      sessions, mailboxes, inference worker                 -> policies, and as edge
    cage        the last check before a command leaves                knows only numpy
    edge        action queue, requests, ladder, robot file            -> wire, parameters, cage,
                                                                         trace, telemetry
    router      split, sticky table, slots, shadow, canary            -> as edge
    bags        what went over the topics, as ros2 bag writes it      -> wire, trace
    replay      what was recorded, asked again                        -> server, policies, bags,
                                                                         trace, wire, parameters
    doctor      what is wrong before anything runs                    -> edge, server, policies,
                                                                         cage, wire, parameters,
                                                                         start
    planning    how many servers a fleet needs                        -> parameters
    sim         a small robot and its cameras                         -> wire, parameters
    ros         what nodes need of rclpy: parameters, QoS, runtime    -> wire, parameters, start
    start       holds signals back while an executable loads          knows nothing
    bench       measurements                                          -> everything
    demo        a small fleet, what becomes of it, its policies       -> everything
    cli         one file a verb                                       -> everything

The modules of a room are plain: they never import rclpy, never read a clock they were not given,
and raise typed errors. Each room's node.py wires them to ROS. Only node.py files, ros, bench,
demo and cli import rclpy.
"""

__version__ = '0.1.0'
