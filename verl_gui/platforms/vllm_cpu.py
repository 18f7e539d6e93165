"""vLLM general plugin: makes vLLM's CPU backend take weight updates. Does nothing on other backends.

``VERL_GUI_VLLM_THREADS`` sets the threads of vLLM's own processes: torch's, and those of the second OpenMP
runtime that vLLM's operators bring along, which reads only the environment. The engine and its worker
poll each other; on two cores a second thread of the worker is mostly waited for.
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
    os.environ["OMP_NUM_THREADS"] = text  # for the processes that vLLM starts from this one
    import torch

    torch.set_num_threads(int(text))
