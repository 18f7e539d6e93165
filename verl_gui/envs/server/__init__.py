"""``verl-gui env serve``: any backend over HTTP, for the ``remote`` backend elsewhere."""
