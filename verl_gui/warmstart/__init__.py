"""Warm start: a tiny real Qwen2.5-VL, demonstrations of a scripted expert, and behaviour cloning.

Reinforcement learning needs a policy that sometimes succeeds. On a laptop that is a Qwen2.5-VL of about two
million parameters which learnt the first steps from a scripted expert; on GPU nodes it is UI-TARS.
"""
