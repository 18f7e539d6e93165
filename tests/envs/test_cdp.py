import json
import os
import threading
import time

import pytest

from verl_gui.envs.cdp import CdpClosed, CdpError, CdpPipe, CdpTimeout


class FakeBrowser:
    """Answers one request with raw bytes, in pieces if wanted."""

    def __init__(self, answer):
        to_browser, write_fd = os.pipe()
        read_fd, from_browser = os.pipe()
        self.pipe = CdpPipe(write_fd, read_fd)
        self.requests = []

        def serve():
            buffer = b""
            while chunk := os.read(to_browser, 65536):
                buffer += chunk
                while b"\0" in buffer:
                    line, _, buffer = buffer.partition(b"\0")
                    self.requests.append(json.loads(line))
                    for piece in answer(self.requests[-1]):
                        if piece is None:
                            os.close(from_browser)
                            return
                        os.write(from_browser, piece)

        threading.Thread(target=serve, daemon=True).start()


def message(**content):
    return json.dumps(content).encode() + b"\0"


def test_answer_is_found_among_events_and_pieces():
    def answer(request):
        data = message(method="Some.event") + message(id=request["id"], result={"text": "é" * 9})
        return [data[:5], data[5:-3], data[-3:]]

    browser = FakeBrowser(answer)
    assert browser.pipe.call("A.b", {"x": 1}, session="s", timeout_s=5)["text"] == "é" * 9
    assert browser.requests == [{"id": 1, "method": "A.b", "params": {"x": 1}, "sessionId": "s"}]


def test_late_answer_of_an_earlier_call_is_not_mistaken():
    browser = FakeBrowser(
        lambda request: (
            []
            if request["id"] == 1
            else [message(id=1, result={"value": "late"}), message(id=2, result={"value": "mine"})]
        )
    )
    with pytest.raises(CdpTimeout):
        browser.pipe.call("A.b", timeout_s=0.05)
    assert browser.pipe.call("A.b", timeout_s=5) == {"value": "mine"}


def test_errors_are_told():
    browser = FakeBrowser(lambda request: [message(id=request["id"], error={"message": "no such thing"})])
    with pytest.raises(CdpError, match=r"A\.b: no such thing"):
        browser.pipe.call("A.b", timeout_s=5)


def test_silence_is_bounded():
    browser = FakeBrowser(lambda request: [])
    start = time.monotonic()
    with pytest.raises(CdpTimeout):
        browser.pipe.call("A.b", timeout_s=0.1)
    assert time.monotonic() - start < 2


def test_browser_that_does_not_read_is_bounded():
    reader, writer = os.pipe()
    pipe = CdpPipe(writer, os.dup(reader))
    with pytest.raises(CdpTimeout):
        pipe.call("A.b", {"x": "y" * 1_000_000}, timeout_s=0.1)
    os.close(reader)
    pipe.close()


def test_end_of_browser_is_told():
    browser = FakeBrowser(lambda request: [None])
    with pytest.raises(CdpClosed):
        browser.pipe.call("A.b", timeout_s=5)
    browser.pipe.close()
    browser.pipe.close()
    with pytest.raises(CdpClosed, match="closed"):
        browser.pipe.call("A.b", timeout_s=5)


@pytest.mark.parametrize(
    "event, lost",
    [
        ({"method": "Inspector.targetCrashed", "sessionId": "mine", "params": {}}, True),
        ({"method": "Target.detachedFromTarget", "params": {"sessionId": "mine"}}, True),
        ({"method": "Target.detachedFromTarget", "params": {"sessionId": "other"}}, False),
    ],
)
def test_loss_of_the_page_is_told_at_once(event, lost):
    answers = [message(**event)]
    browser = FakeBrowser(lambda request: [*answers, *([] if lost else [message(id=1, result={})])])
    if lost:
        with pytest.raises(CdpClosed, match="page is gone"):
            browser.pipe.call("A.b", session="mine", timeout_s=30)
    else:
        assert browser.pipe.call("A.b", session="mine", timeout_s=30) == {}
