"""``verl-gui tasks``: list, show, validate, filter, stats, record."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_gui.evaluation.options import Refused, add_run_options, refusals, run_all

if TYPE_CHECKING:
    from verl_gui.tasks.sources import TaskInstance

SOURCES_HELP = (
    "a source is an OSWorld list (test_all.json), a JSONL or JSON file of tasks, a directory of task files, "
    "PATH@train or PATH@test for a fixed part of one, miniwob:PAGE@train|demo|test:COUNT for seeds of a "
    "MiniWoB++ page, or `desktop` for the built-in desktop tasks"
)


def add_commands(subparsers: Any) -> None:
    """Declare the commands."""
    tasks = subparsers.add_parser("tasks", help="look at, check, filter and record tasks")
    commands = tasks.add_subparsers(title="commands", metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="names and instructions of tasks", epilog=SOURCES_HELP)
    listing.add_argument("sources", nargs="+", metavar="SOURCE")
    listing.add_argument("--domains", action="store_true", help="only the number of tasks of each domain")
    listing.set_defaults(run=_list)

    show = commands.add_parser("show", help="one task in full", epilog=SOURCES_HELP)
    show.add_argument("source", metavar="SOURCE")
    show.add_argument("name", help="its id, or its name as `tasks list` prints it")
    show.set_defaults(run=_show)

    validate = commands.add_parser(
        "validate", help="check every task and report all that is wrong", epilog=SOURCES_HELP
    )
    validate.add_argument("sources", nargs="+", metavar="SOURCE")
    validate.set_defaults(run=_validate)

    choose = commands.add_parser(
        "filter",
        help="keep the tasks that a policy solves sometimes",
        description="Run a policy k times on each task, keep those that it solves sometimes, and write them "
        "as an OSWorld list. Interrupted, it goes on where it was.",
        epilog=SOURCES_HELP,
    )
    add_run_options(choose, runs=16)
    choose.add_argument("--min-success", type=int, default=1, help="successes a task needs (1)")
    choose.add_argument("--lower", type=float, metavar="RATE", help="its success rate must be above this")
    choose.add_argument("--upper", type=float, metavar="RATE", help="its success rate must be below this")
    choose.add_argument(
        "--min-valid", type=int, metavar="N", help="valid runs needed to decide (half of --runs)"
    )
    choose.add_argument("--keep-unknown", action="store_true", help="keep tasks with too few valid runs")
    choose.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="prompts of a training step: refuse a list shorter than it",
    )
    choose.set_defaults(run=_filter)

    stats = commands.add_parser("stats", help="success rates in a directory of results, or a checkpoint")
    stats.add_argument("path", type=Path, help="--out of a filter or evaluation, or global_step_N of a run")
    stats.set_defaults(run=_stats)

    record = commands.add_parser(
        "record",
        help="let the scripted expert, or a person, play tasks and keep the successes as trajectories",
        epilog=SOURCES_HELP,
    )
    add_run_options(record, runs=1, policy="expert")
    record.add_argument(
        "--person",
        dest="policy",
        action="store_const",
        const="person",
        help="a person plays, in a web page whose address is printed",
    )
    record.set_defaults(run=_record)


def _list(options: argparse.Namespace) -> int:
    instances = _read(options.sources)
    if instances is None:
        return 2
    if options.domains:
        for domain, count in sorted(Counter(i.task.domain or "tasks" for i in instances).items()):
            sys.stdout.write(f"{count:6d}  {domain}\n")
        return 0
    for instance in instances:
        sys.stdout.write(f"{instance.name}\t{instance.task.domain}\t{_line(instance.task.instruction)}\n")
    return 0


def _show(options: argparse.Namespace) -> int:
    instances = _read([options.source])
    if instances is None:
        return 2
    for instance in instances:
        if options.name in (instance.name, instance.task.id):
            data = instance.task.to_dict()
            if instance.seed is not None:
                data["seed"] = instance.seed
            sys.stdout.write(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
            return 0
    sys.stderr.write(f"{options.source} has no task {options.name!r}\n")
    return 2


def _validate(options: argparse.Namespace) -> int:
    from verl_gui.tasks import expand_sources

    skipped: list[Any] = []
    try:
        instances = expand_sources(options.sources, skipped=skipped)
    except refusals() as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for reason in skipped:
        sys.stdout.write(f"{reason}\n")
    sys.stdout.write(f"{len(instances)} tasks can be used, {len(skipped)} cannot\n")
    return 1 if skipped or not instances else 0


def _filter(options: argparse.Namespace) -> int:
    from verl_gui.evaluation.runs import read_settings, tally
    from verl_gui.evaluation.session import read_sessions
    from verl_gui.tasks import filter as task_filter
    from verl_gui.tasks import filter_report

    try:
        rule = task_filter.FilterRule(
            min_success=options.min_success,
            lower=options.lower,
            upper=options.upper,
            min_valid=options.min_valid or -(-options.runs // 2),
            keep_unknown=options.keep_unknown,
        )
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    try:
        instances, runs = run_all(options, "filter")
    except Refused as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    tallies = tally(runs, instances)
    filtered = task_filter.filter_tasks(instances, tallies, rule)
    content = filter_report.report(
        instances,
        tallies,
        filtered,
        rule,
        runs,
        read_sessions(options.out),
        {"runs": options.runs, **read_settings(options.out)},
    )
    page = filter_report.write_report(content, options.out)
    sys.stdout.write(filter_report.text(content))
    sys.stdout.write(f"{page}\n")
    (options.out / "tasks.json").unlink(missing_ok=True)  # of another rule; it can be written again
    try:
        warning = task_filter.check_enough(filtered, batch_size=options.batch_size)
    except task_filter.FilterError as error:
        sys.stderr.write(f"no list was written: {error}\n")
        return 1
    notes = {
        name: {"successes": t.successes, "valid": t.valid, "invalid": t.invalid, "rate": t.rate}
        for name, t in tallies.items()
    }
    task_filter.write_task_list(filtered.kept, options.out / "tasks.json", notes=notes)
    sys.stdout.write(f"{options.out / 'tasks.json'}\n")
    if warning:
        sys.stderr.write(f"{warning}\n")
    return 0


def _stats(options: argparse.Namespace) -> int:
    from verl_gui.tasks.stats_view import table_of

    try:
        sys.stdout.write(table_of(options.path))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _record(options: argparse.Namespace) -> int:
    from verl_gui.tasks.record import keep_successes

    options.record = True
    try:
        instances, runs = run_all(options, "record")
    except Refused as error:
        sys.stderr.write(f"{error}\n")
        return error.status
    kept = keep_successes(options.out / "trajectories", options.out / "demonstrations")
    failed = sum(run.valid and not run.success for run in runs)
    unknown = sorted({run.failure or "" for run in runs if not run.valid})
    sys.stdout.write(
        f"{kept} successful trajectories of {len(instances)} tasks in {options.out / 'demonstrations'}; "
        f"{failed} runs failed, {sum(not run.valid for run in runs)} were invalid\n"
    )
    for why in unknown[:10]:
        sys.stdout.write(f"  invalid: {_line(why)}\n")
    return 0 if kept else 1


def _read(sources: list[str]) -> list[TaskInstance] | None:
    from verl_gui.tasks import expand_sources

    try:
        return expand_sources(sources)
    except refusals() as error:
        sys.stderr.write(f"{error}\n")
        return None


def _line(text: str) -> str:
    return " ".join(text.split())
