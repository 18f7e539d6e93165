"""Whether virtual machines can use the processor's own virtualization."""

from __future__ import annotations

import os
import re
from pathlib import Path

_FLAGS = re.compile(r"^flags\s*:.*\b(vmx|svm)\b", re.MULTILINE)


def usable_kvm(cpuinfo: Path = Path("/proc/cpuinfo"), device: Path = Path("/dev/kvm")) -> bool:
    """Whether KVM works here: the processor says so *and* we may open the device.

    The device alone proves nothing: it exists on machines whose processor (or whose hypervisor) offers no
    virtualization, and virtual machines started with it hang there.
    """
    try:
        flags = cpuinfo.read_text()
    except OSError:
        return False
    return bool(_FLAGS.search(flags)) and os.access(device, os.R_OK | os.W_OK)
