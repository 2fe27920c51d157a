# SPDX-License-Identifier: Apache-2.0
"""
Learned robot policies, served from GPU machines to robots that carry no weights.

Rooms, and which ones each may import (held by test/unit/package/test_architecture.py):

    wire          messages <-> arrays, envelope, image codec, names     imports only numpy
    parameters    what a parameter of a node is                         imports nothing
    errors        the error that a user can correct                     imports nothing
    atomic_file   replaces a file as a whole                            imports nothing
    shared_memory removes what killed processes leave in /dev/shm       imports nothing
    cage          the last check before a command leaves                imports only numpy
    policies      loads and runs policies; alone imports torch          -> wire
    trace         record format, and writing it                         -> wire, parameters, ...
    telemetry     metrics, liveness and readiness over HTTP             -> parameters
    server        sessions, scheduling, inference                       -> policies and the above
    edge          sessions, control, fallback, action queue, robot file -> cage, wire, trace, ...
    router        data path, placement, canary, shadow, storage         -> cage, wire, trace, ...
    sim           a simulated robot arm and its cameras                 -> wire, parameters
    ros           what every node needs of rclpy: QoS, process, node    -> wire, parameters, errors
    entry_points  how an executable loads and ends                      -> errors, shared_memory
    tools         audit, stats, diagnosis, replay, bags, plan, doctor   -> everything above
    demo          a simulated rollout with three policies               -> everything above
    tools/cli     one module for each verb                              -> everything above

No node imports tools, demo or cli. Plain modules never import rclpy, never read a clock they were
not given, and raise typed errors; node.py and the folder `ros` of a room connect it to ROS.
"""

__version__ = '0.2.0'
