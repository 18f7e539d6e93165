import argparse
import subprocess
import sys
import time

import pytest

from verl_gui import __version__
from verl_gui.cli import COMMAND_MODULES, build_parser, main


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    assert "run" in capsys.readouterr().out


def test_version_names_the_packages(capsys):
    assert main(["version"]) == 0
    shown = capsys.readouterr().out
    assert f"verl-gui {__version__}\n" in shown and "python 3." in shown


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["run"], ["run", "--dir", "x"], ["run", "--dir", "x", "--total-steps", "0", "--", "y"]],
)
def test_a_wrong_command_line_is_refused(arguments, capsys):
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert "usage: verl-gui" in capsys.readouterr().err


def test_arguments_of_the_command_are_left_alone():
    options = build_parser().parse_args(
        ["run", "--dir", "x", "--", "python", "-m", "a", "--dir", "b", "+c=1", "--", "d"]
    )
    assert options.command == ["python", "-m", "a", "--dir", "b", "+c=1", "--", "d"]


def test_a_report_of_nothing_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "not a directory" in capsys.readouterr().err


def test_every_room_declares_commands():
    parser = build_parser()
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    assert {"run", "report", "doctor", "version"} <= set(commands.choices)
    assert len(COMMAND_MODULES) == len(set(COMMAND_MODULES))


def test_the_command_line_loads_nothing_heavy():
    code = (
        "import sys, verl_gui.cli; verl_gui.cli.build_parser(); "
        "heavy = {'torch', 'ray', 'verl', 'vllm', 'transformers', 'numpy', 'matplotlib', 'PIL', 'tqdm'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_help_costs_little_processor_time():
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "verl_gui.cli", "--help"], check=True, capture_output=True, timeout=60
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3
    assert time.monotonic() - began < 30
