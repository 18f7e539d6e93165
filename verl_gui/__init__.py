"""verl_gui: train vision-language GUI agents with stock verl."""

__version__ = "0.1.0"
