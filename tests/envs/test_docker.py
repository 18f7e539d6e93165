"""What surrounds containers; the daemon itself is replaced by one that fails on command."""

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from docker.errors import APIError, ImageNotFound, NotFound

from verl_gui.envs.base import EnvFailure
from verl_gui.envs.docker.guests import GUEST_PORT, DockerGuests
from verl_gui.envs.docker.kvm import usable_kvm
from verl_gui.envs.docker.orphans import OWNER_LABEL, new_owner, remove_orphans
from verl_gui.envs.docker.ports import FIRST, LAST, PortBlock
from verl_gui.envs.registry import make_env

# -- virtualization ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, device, usable",
    [
        ("fpu vme de vmx sse", True, True),
        ("fpu svm", True, True),
        ("fpu vme de", True, False),  # the node exists and machines hang
        ("fpu vmx", False, False),
        ("fpu vmxfoo", True, False),
        ("", True, False),
    ],
)
def test_kvm_needs_the_processor_and_the_device(flags, device, usable, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvmx flags\t: -\nflags\t\t: {flags}\n")
    if device:
        (tmp_path / "kvm").touch()
    assert usable_kvm(tmp_path / "cpuinfo", tmp_path / "kvm") is usable


def test_no_cpuinfo_is_no_kvm(tmp_path):
    assert not usable_kvm(tmp_path / "none", tmp_path / "none")


# -- ports ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [{"id": "B58-0", "workers": 64, "per": 4, "expect": "256 distinct"}])
def test_blocks_of_workers_differ_and_lie_below_the_ephemeral_range(case, tmp_path):
    blocks = [PortBlock(case["per"], tmp_path) for _ in range(case["workers"])]
    ports = [port for block in blocks for port in block.ports]
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        ephemeral = int(file.read().split()[0])
    assert len(set(ports)) == int(case["expect"].split()[0])
    assert min(ports) >= FIRST and max(ports) < LAST < ephemeral
    for block in blocks:
        block.release()
        block.release()
    assert PortBlock(case["per"], tmp_path).ports == blocks[0].ports


def test_processes_that_start_together_take_different_blocks_and_killed_ones_give_theirs_back(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from verl_gui.envs.docker.ports import PortBlock\n"
        "block = PortBlock(4, Path(sys.argv[1])); print(block.ports[0], flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, tmp_path]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    first = [int(worker.stdout.readline()) for worker in workers]
    assert len(set(first)) == 4
    for worker in workers:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    assert PortBlock(4, tmp_path).ports[0] == min(first)


def test_a_port_that_a_stranger_has_is_passed_over(tmp_path):
    block = PortBlock(4, tmp_path)
    block.release()
    with socket.create_server(("127.0.0.1", block.ports[2])):
        assert PortBlock(4, tmp_path).ports[0] > block.ports[3]


# -- containers -------------------------------------------------------------------------------------------


class Container:
    def __init__(self, daemon, labels, errors=()):
        self.daemon, self.labels, self.errors, self.id = daemon, labels, list(errors), str(id(self))
        self.attrs = {"NetworkSettings": {"Ports": {GUEST_PORT: [{"HostPort": "32768"}]}}}
        self.calls = []

    def __getattr__(self, name):
        def call(**options):
            self.calls.append((name, options))
            if self.errors:
                raise self.errors.pop(0)
            if name == "remove":
                if self not in self.daemon.found:
                    raise NotFound("gone")
                self.daemon.found.remove(self)

        return call


class Daemon:
    """As much of docker as is used."""

    def __init__(self):
        self.found, self.created, self.start_errors = [], [], []
        self.containers = SimpleNamespace(list=self._list, create=self._create)

    def _list(self, *, all, filters, ignore_removed):
        assert all and filters == {"label": OWNER_LABEL}
        return list(self.found)

    def _create(self, image, **options):
        if image == "missing":
            raise ImageNotFound("no such image")
        errors = [self.start_errors.pop(0)] if self.start_errors else []
        container = Container(self, options["labels"], errors)
        self.found.append(container)
        self.created.append((image, options))
        return container


def dead_owner():
    code = "from verl_gui.envs.docker.orphans import new_owner; print(new_owner())"
    return subprocess.check_output([sys.executable, "-c", code], text=True).strip()


@pytest.mark.parametrize("case", [{"id": "B60-0", "before": 15, "after": 0}])
def test_orphans_of_dead_processes_go_with_their_volumes_and_those_of_others_stay(case):
    daemon, dead = Daemon(), dead_owner()
    orphans = [Container(daemon, {OWNER_LABEL: dead}) for _ in range(case["before"])]
    ours = Container(daemon, {OWNER_LABEL: new_owner()})
    other = Container(daemon, {OWNER_LABEL: f"verl-gui-docker-1-{os.getpid()}-aa"})  # of another machine
    strange = Container(daemon, {OWNER_LABEL: "somebody else's"})
    daemon.found = [*orphans, ours, other, strange]
    assert remove_orphans(daemon) == case["before"] - case["after"]
    assert daemon.found == [ours, other, strange]
    assert all(orphan.calls == [("remove", {"force": True, "v": True})] for orphan in orphans)


def test_an_orphan_that_cannot_be_removed_does_not_keep_the_others():
    daemon, dead = Daemon(), dead_owner()
    errors = [[APIError("busy")], [NotFound("another was faster")], []]
    daemon.found = [Container(daemon, {OWNER_LABEL: dead}, broken) for broken in errors]
    assert remove_orphans(daemon) == 1


def test_a_container_is_limited_labelled_and_reached_on_the_loopback_address_only():
    daemon = Daemon()
    guests = DockerGuests((800, 600), client=daemon)
    assert guests.fresh() == "http://127.0.0.1:32768"
    _, options = daemon.created[0]
    assert options["ports"] == {GUEST_PORT: ("127.0.0.1", None)}  # docker chooses: no race
    assert options["cap_drop"] == ["ALL"] and options["mem_limit"] and options["pids_limit"]
    assert options["environment"] == {"SCREEN": "800x600"}
    guests.fresh()
    assert len(daemon.found) == 1 and len(daemon.created) == 2  # the first one is gone
    guests.pause()
    guests.resume()
    assert [call for call, _ in daemon.found[0].calls][-2:] == ["pause", "unpause"]
    guests.close()
    guests.close()
    assert daemon.found == []


def test_a_port_that_is_taken_is_tried_again_and_the_created_container_removed():
    daemon = Daemon()
    daemon.start_errors = [APIError("port is already allocated")]
    assert DockerGuests((800, 600), client=daemon).fresh()
    assert len(daemon.created) == 2 and len(daemon.found) == 1
    daemon.start_errors = [APIError("no space left on device")]
    with pytest.raises(EnvFailure, match="no space left"):
        DockerGuests((800, 600), client=daemon).fresh()
    assert len(daemon.found) == 1


def test_a_container_removed_under_us_is_dead_and_replaced():
    daemon = Daemon()
    guests = DockerGuests((800, 600), client=daemon)
    guests.fresh()
    daemon.found[0].errors = [NotFound("no such container")]
    with pytest.raises(EnvFailure) as failure:
        guests.pause()
    assert failure.value.kind == "dead"
    daemon.found.clear()
    assert guests.fresh()


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    with pytest.raises(EnvFailure, match="build_image"):
        DockerGuests((800, 600), image="missing", client=Daemon()).fresh()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(EnvFailure, match="docker cannot be used"):
        make_env("docker")
