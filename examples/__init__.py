"""Small programs that show how to extend verl_gui; each is run by a test."""
