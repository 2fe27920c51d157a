"""
What the robot senses: the latest message of each input, the history a policy asks for, frozen or
outdated inputs, frames in wire form. The executor deposits messages unopened; `tick` records the
history; `request` opens, checks and encodes them for one observation.
"""
