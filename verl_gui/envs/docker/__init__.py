"""Containers: the ``docker`` backend, and what OSWorld's own docker provider needs around it."""
