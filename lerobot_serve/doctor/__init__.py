"""
What is wrong before anything runs, and what to do about it. Every check is a function that returns
findings; what it looks at is given to it, so that nothing has to be broken to test it.

    finding      one line of the report: its verdict, and its remedy where there is something to do
    machine      what is looked at of this machine
    clocks       the clock on the wall against the one that only goes forward
    environment  ROS, packages, middleware, shared memory, limits
    kinds        which kind of policy a directory holds
    policy       loads a policy as a policy_server does, and measures it
    speed        the 20 % rule, and how many robots one server can serve
    robot        the robot file, and whether policy and robot agree
    topics       what was heard on the robot's topics
    control      traps of ros2_control
    report       all of it as text and as JSON
    node         a short-lived node that listens and asks
"""
