"""What is made of messages of many sizes on many set-ups: `fordway bench pingpong`, and published tables of
the same kind.
"""
