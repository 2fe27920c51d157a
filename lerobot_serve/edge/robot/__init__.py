"""
What the robot is.

    description  the data: state, cameras, actions and their limits, interlocks, commands
    file         reading it from YAML, every mistake with its place
    table        one mapping of the file, and what its values may be
    checks       what the parts of a robot must be to each other
    units        what a number of the robot is for the policy, and the reverse
    urdf         limits from a URDF
    measured     which value of the state tells where an action's joint is
    commands     the command of a control step as a message
"""
