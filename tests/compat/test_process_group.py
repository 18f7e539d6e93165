import pytest
import torch.distributed

from verl_gui.compat import process_group


@pytest.fixture
def single_process(tmp_path, monkeypatch):
    monkeypatch.setenv("DIST_INIT_METHOD", f"file://{tmp_path}/rendezvous")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_released_verl_names_gloo_twice(released, single_process):
    with pytest.raises(ValueError, match=r"(?i)duplicate"):
        released(process_group.BRIDGE).initialize_global_process_group_ray()


def test_group_starts_on_the_cpu_with_gloo(repaired, single_process):
    repaired(process_group.BRIDGE).initialize_global_process_group_ray(timeout_second=60)
    assert torch.distributed.get_backend() == "gloo"
    total = torch.ones(3)
    torch.distributed.all_reduce(total)
    assert total.tolist() == [1, 1, 1]


def test_backend_of_the_caller_wins(repaired, single_process):
    repaired(process_group.BRIDGE).initialize_global_process_group_ray(backend="cpu:gloo")
    assert "cpu:gloo" in torch.distributed.distributed_c10d._world.pg_map[torch.distributed.group.WORLD][0]
