"""The CPU as a device: for verl (``cpu``) and for vLLM (``vllm_cpu``)."""
