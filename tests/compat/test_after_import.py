import importlib
import inspect
import sys
from pathlib import Path

import pytest

from verl_gui.compat import _imports
from verl_gui.compat._imports import after_import


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_imports, "_hooks", {})
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    made: list[str] = []

    def make(name: str, source: str) -> str:
        path = tmp_path / (name.replace(".", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_hook_runs_after_the_import_and_imports_nothing(make_module):
    make_module("hooked_a", "value = 1")
    seen = []
    after_import("hooked_a", lambda module: seen.append(module.value))
    assert seen == [] and "hooked_a" not in sys.modules
    importlib.import_module("hooked_a")
    assert seen == [1]


def test_importers_see_the_changed_module(make_module):
    make_module("hooked_b", "def f():\n    return 'old'\n")
    make_module("uses_b", "from hooked_b import f\n")

    def change(module):
        module.f = lambda: "new"

    after_import("hooked_b", change)
    assert importlib.import_module("uses_b").f() == "new"


def test_hook_runs_at_once_when_the_module_is_imported(make_module):
    make_module("hooked_c", "value = 3")
    importlib.import_module("hooked_c")
    seen = []
    after_import("hooked_c", lambda module: seen.append(module.value))
    assert seen == [3]


def test_hooks_run_in_order_and_again_on_reload(make_module):
    make_module("hooked_d", "value = 4")
    seen = []
    after_import("hooked_d", lambda module: seen.append("first"))
    after_import("hooked_d", lambda module: seen.append("second"))
    module = importlib.import_module("hooked_d")
    importlib.reload(module)
    assert seen == ["first", "second"] * 2


def test_failing_hook_fails_every_import(make_module):
    make_module("hooked_e", "value = 5")

    def fail(module):
        raise RuntimeError("not on my watch")

    after_import("hooked_e", fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not on my watch"):
            importlib.import_module("hooked_e")
        assert "hooked_e" not in sys.modules


def test_module_that_is_being_imported_is_refused(make_module):
    make_module("hooked_f", "from verl_gui.compat import after_import\nafter_import('hooked_f', print)\n")
    with pytest.raises(ImportError, match="hooked_f is being imported right now"):
        importlib.import_module("hooked_f")


def test_hooked_module_keeps_its_source_and_package(make_module):
    make_module("package_g.__init__", "")
    make_module("package_g.part", "def f():\n    return 7\n")
    after_import("package_g.part", lambda module: None)
    module = importlib.import_module("package_g.part")
    assert "return 7" in inspect.getsource(module.f) and module.__package__ == "package_g"
    del sys.modules["package_g"]


def test_missing_module_stays_missing(make_module):
    after_import("no_such_module_h", lambda module: None)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_h"):
        importlib.import_module("no_such_module_h")
