"""vLLM general plugin: makes vLLM's CPU backend take weight updates. Does nothing on other backends.

``VERL_GUI_VLLM_THREADS`` sets torch's threads in vLLM's own processes. The engine's process and its worker
poll each other; on two cores a second thread of the worker is then mostly waited for.
"""

import os

from verl_gui import compat

THREADS_VARIABLE = "VERL_GUI_VLLM_THREADS"


def register() -> None:
    """Called by vLLM in each of its processes (entry-point group ``vllm.general_plugins``).

    Raises:
        ValueError: ``VERL_GUI_VLLM_THREADS`` is no positive number.
    """
    compat.vllm_name.install()
    compat.install_for_vllm()
    text = os.environ.get(THREADS_VARIABLE)
    if text is None:
        return
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{THREADS_VARIABLE}={text!r}: expected a positive number of threads")
    import torch

    torch.set_num_threads(int(text))
