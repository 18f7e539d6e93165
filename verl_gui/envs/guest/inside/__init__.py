"""The HTTP server inside a guest, speaking OSWorld's guest interface.

It runs under the guest's own Python, in our sandbox or in a container, so it imports nothing but the standard
library and nothing else of this project. It executes what it is told: that is what it is for, and why it must
run nowhere but inside.
"""
