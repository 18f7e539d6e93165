"""vLLM general plugin: makes vLLM's CPU backend take weight updates. Does nothing on other backends."""

from verl_gui import compat


def register() -> None:
    """Called by vLLM in each of its processes (entry-point group ``vllm.general_plugins``)."""
    compat.vllm_name.install()
    compat.install_for_vllm()
