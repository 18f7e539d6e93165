"""A desktop that speaks OSWorld's guest interface: HTTP server inside, machine around it."""
