"""The ``osworld`` backend: OSWorld's tasks on any guest that speaks its interface."""
