"""`fordway model advise`: predicts how long a tree takes on each measured lane, and recommends a lane."""
