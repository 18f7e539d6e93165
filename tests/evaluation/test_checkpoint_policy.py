"""What surrounds vLLM when it serves a checkpoint. vLLM itself is not started here."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest
from in_process import png

from verl_gui.config import RolloutConfig
from verl_gui.evaluation.policies import PolicySetupError, checkpoint
from verl_gui.evaluation.policies.checkpoint import (
    VllmServer,
    frame_of,
    processor_of,
    serve_command,
    unsampled,
)

POLICY = Path(__file__).parents[2] / "recipes/quickstart/policy"
ROLLOUT = RolloutConfig(min_pixels=3136, max_pixels=37632, history_images=3)


def test_the_server_resizes_and_limits_pictures_as_training_does():
    command = serve_command(POLICY, ROLLOUT, 1234, 8, ["--seed", "1"])
    options = dict(zip(command[3::2], command[4::2], strict=False))
    assert json.loads(options["--mm-processor-kwargs"]) == {"min_pixels": 3136, "max_pixels": 37632}
    assert json.loads(options["--limit-mm-per-prompt"]) == {"image": 3, "video": 0}
    assert options["--host"] == "127.0.0.1" and options["--max-num-seqs"] == "8"
    assert options["--generation-config"] == "vllm" and command[-2:] == ["--seed", "1"]


@pytest.fixture(scope="module")
def processor():
    return processor_of(POLICY)


def test_picture_tokens_cannot_be_sampled(processor):
    banned = unsampled(processor)
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert banned[str(pad)] == -100.0 and len(banned) >= 3


@pytest.mark.parametrize(("screen", "frame"), [((168, 224), (168, 224)), ((1000, 500), (252, 112))])
def test_the_frame_is_read_from_the_processor(processor, screen, frame):
    picture = png(0, screen)
    assert frame_of(processor, ROLLOUT)(picture, screen) == (picture, frame)


def test_no_checkpoint(tmp_path):
    with pytest.raises(PolicySetupError, match="no checkpoint with a processor"):
        processor_of(tmp_path)


def server(tmp_path, script):
    found = VllmServer(POLICY, ROLLOUT, concurrency=1, log=tmp_path / "vllm.log")
    port = found.base_url.rpartition(":")[2].partition("/")[0]
    found._command = [sys.executable, "-c", script, port]
    return found


def test_a_server_that_ends_says_why(tmp_path):
    with pytest.raises(PolicySetupError, match=r"status 3.*\n.*out of memory"):
        server(tmp_path, "import sys; print('out of memory'); sys.exit(3)").start()


def test_a_server_that_never_answers_is_ended(tmp_path):
    silent = server(tmp_path, "import time; print('loading', flush=True); time.sleep(600)")
    with pytest.raises(PolicySetupError, match=r"did not answer within 1 s.*\n.*loading"):
        silent.start(timeout_s=1.0)
    assert silent._process is None


HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print(child.pid, flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_nothing_is_left_of_a_server(tmp_path):
    healthy = server(tmp_path, HEALTHY)
    healthy.start(timeout_s=30)
    child = int((tmp_path / "vllm.log").read_text().split()[0])
    assert is_running(child)
    healthy.stop()
    deadline = time.monotonic() + 20  # it was sent SIGKILL; a busy machine carries that out when it can
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    healthy.stop()  # once more does nothing


def test_the_threads_of_a_cpu_are_not_pinned(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_has_gpu", lambda: False)
    script = "import os, sys; print(os.environ['VLLM_CPU_OMP_THREADS_BIND']); sys.exit(1)"
    with pytest.raises(PolicySetupError, match="nobind"):
        server(tmp_path, script).start()
