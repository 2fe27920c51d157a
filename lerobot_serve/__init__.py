# SPDX-License-Identifier: Apache-2.0
"""
Learned robot policies, served from GPU machines to robots that carry no weights.

Rooms, and the rooms that each may import (test/unit/package/test_architecture.py checks this):

    arrays        the types of arrays                                   imports only numpy
    wire          messages <-> arrays, envelope, image codec, names     -> arrays; simplejpeg, cv2
    parameters    declaration of a node parameter                       imports nothing
    errors        the error that a user can correct                     imports nothing
    atomic_file   replaces a file as a whole                            imports nothing
    private_file  whether a file with a secret is private               imports nothing
    ros_home      the folder of ROS for what nodes keep                 imports nothing
    access        tokens in private files, addresses                    -> errors, atomic_file
    quotas        what a robot or group may ask for                     -> parameters
    shared_memory what killed processes leave behind in /dev/shm        imports nothing
    versions      stores of policies by fingerprint, fetching     -> errors, atomic_file, access
    experience    announced episodes, and finding them on disks         -> wire, versions, ...
    cage          the last check of each command                        -> arrays
    policies      loads and runs policies; only it imports torch        -> arrays, wire, versions
    trace         record format, and writing it                         -> wire, parameters, ...
    telemetry     metrics, liveness and readiness over HTTP             -> parameters
    client        sessions without ROS, for notebooks                   -> wire, zenoh, access, ...
    server        sessions, scheduling, inference                       -> policies and the above
    edge          sessions, control, fallback, action queue, robot file -> cage, wire, trace, ...
    router        data path, placement, canary, shadow, storage         -> cage, wire, trace, ...
    gateway       sessions for other people's clients                   -> access, wire, zenoh, ...
    learner       rounds of training, and their trainers                -> policies, versions, ...
    sim           a simulated robot arm and its cameras                 -> wire, parameters
    ros           shared by all nodes: QoS, process, node, topics       -> wire, parameters, ...
    entry_points  start and end of an executable                        -> errors, shared_memory
    tools         audit, stats, replay, bags, plan, link, fleet ...     -> everything above
    demo          a simulated rollout with three policies               -> everything above
    tools/cli     one module for each verb                              -> everything above

No node imports tools, demo or cli. Plain modules never import rclpy and raise typed errors;
node.py and, where a room has one, its folder `ros` connect it to ROS. What decides takes the time
or a clock as an argument; outer modules, such as server/core.py and router/runtime.py, read the
monotonic clock themselves for deadlines and durations.
"""

__version__ = '0.2.0'
