"""The ``remote`` backend: environments that a ``verl-gui env serve`` somewhere else keeps for us."""
