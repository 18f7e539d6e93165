"""What is put into MiniWoB++ pages to make them deterministic, quiet and observable, and quick to change.

The browser shows one document, the *stage*, which holds a task's page in a frame as large as itself. Frames
of the tasks shown last are kept, because loading a page costs ten times more than starting an episode on it.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

PAGES_INSIDE = "/srv/html"
"""Where the pages lie in the sandbox."""

STAGE_INSIDE = "/srv/stage"
"""Where the stage lies in the sandbox."""

STAGE_FILE = "stage.html"

STAGE_HTML = """<!DOCTYPE html>
<title>stage</title>
<style>
  html, body { margin: 0; overflow: hidden; background: #555; }
  iframe { position: fixed; left: 0; top: 0; width: 100vw; height: 100vh; border: 0; background: #555; }
  iframe:not(.shown) { display: none; }
</style>
<body></body>
"""

SENTINEL_KEY = "Control_R"
"""A key whose press means nothing to a page; it marks the end of the input of one step."""

POLICIES = {
    "URLBlocklist": ["*"],
    "URLAllowlist": [f"file://{PAGES_INSIDE}", f"file://{STAGE_INSIDE}", "about:blank"],
    "AllowFileSelectionDialogs": False,
    "PrintingEnabled": False,
    "DownloadRestrictions": 3,
    "PasswordManagerEnabled": False,
    "AutofillAddressEnabled": False,
    "AutofillCreditCardEnabled": False,
    "TranslateEnabled": False,
    "SpellcheckEnabled": False,
    "BackgroundModeEnabled": False,
    "MetricsReportingEnabled": False,
    "DefaultBrowserSettingEnabled": False,
}
"""Chromium policies: nothing but the task pages can be opened, and no dialog of the browser appears."""


@functools.cache
def pages_directory() -> Path:
    """The HTML directory of the installed ``miniwob`` package (which is not imported: it pulls in selenium).

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("MiniWoB++ is missing; install verl-gui[miniwob]", name="miniwob")
    return Path(spec.origin).parent / "html"


@functools.cache
def task_names() -> frozenset[str]:
    """Names of all task pages, such as ``click-test-2``."""
    return frozenset(path.stem for path in (pages_directory() / "miniwob").glob("*.html"))


STAMP_ROWS = 8
"""CSS pixels below the visible screen in which the page shows a colour that Python chose.

The compositor shows a page's changes of one frame together: once the colour has reached the framebuffer, so
has everything that the page had drawn before it.
"""

VIEWPORT = (500, 320)
"""Least size of the page in CSS pixels, much larger than a task; some pages place dialogs by it."""

# A page's own time-out, cover page, reward board and click trace are not part of the task. Reward numbers
# would leak to the agent, and anything that moves by itself would make equal states look different.
_BOOT_SCRIPT = r"""
(() => {
  const STYLE = `
    html { overflow: hidden !important; }
    #sync-task-cover, #reward-display, #click-canvas, #attention-canvas { display: none !important; }
    *, *::before, *::after {
      transition: none !important; animation: none !important;
      scroll-behavior: auto !important; caret-animation: manual !important;
    }
    #verl-gui-stamp {
      position: fixed !important; left: 0 !important; top: STAMP_TOPpx !important; width: 100vw !important;
      height: STAMP_ROWSpx !important; z-index: 2147483647 !important; pointer-events: none !important;
    }`;
  const dress = () => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(STYLE);
    document.adoptedStyleSheets = [sheet];
  };
  dress();
  const pause = ms => new Promise(done => setTimeout(done, ms));

  // In every document: what belongs to the browser, not to the page, does nothing.
  const EDITING = /^[acvxyz]$|^Arrow|^Home$|^End$|^Backspace$|^Delete$|^Insert$/i;
  const onKey = event => {
    if (event.code === 'SENTINEL_CODE') {
      event.stopImmediatePropagation();
      event.preventDefault();
      if (event.type === 'keyup') top.verlGui.hear();
    } else if (/^F\d+$/.test(event.key) || event.key.startsWith('Browser') ||
               event.altKey && /^Arrow|^Home$/.test(event.key) ||
               (event.ctrlKey || event.metaKey) && !EDITING.test(event.key)) {
      event.preventDefault();
    }
  };
  for (const type of ['keydown', 'keypress', 'keyup']) addEventListener(type, onKey, true);
  for (const type of ['contextmenu', 'auxclick'])
    addEventListener(type, event => event.preventDefault(), true);
  addEventListener('dragstart', event => { if (event.target.href) event.preventDefault(); }, true);
  window.alert = () => {};
  window.confirm = () => false;
  window.prompt = () => null;
  window.print = () => {};
  window.open = () => null;

  if (window !== top) {
    // Images named in style sheets would come late, at a time of their own.
    const imagesOfSheets = () => {
      const found = new Map();
      for (const sheet of document.styleSheets) for (const rule of sheet.cssRules)
        for (const [, url] of rule.cssText.matchAll(/url\("(.+?)"\)/g)) {
          const image = new Image();
          image.src = new URL(url, sheet.href || document.baseURI);
          found.set(image.src, image);
        }
      return [...found.values()];
    };
    const decoded = images =>
      Promise.race([Promise.all(images.map(image => image.decode().catch(() => {}))), pause(2000)]);
    let dressed = null, keptImages = [];

    window.verlGuiPage = {
      async dress() {
        if (dressed === document) return;
        dressed = document;
        dress();  // once more: a frame's window outlives the empty document that it begins with
        keptImages = imagesOfSheets();
        await decoded(keptImages);
      },
      loaded: () => typeof core !== 'undefined' && typeof genProblem !== 'undefined' && !!core.cover_div,
      state: () => ({done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL}),
      async start(seed) {
        if (window.jQuery) jQuery.fx.off = true;
        core.EPISODE_MAX_TIME = 1e8;
        core.countdownTimer = core.clearTimer = () => {};  // of the board that is hidden
        Math.seedrandom(seed);
        document.activeElement?.blur();
        core.startEpisodeReal();
        for (let i = 0; i < 200 && !WOB_TASK_READY; i++) await pause(10);
        await decoded([...document.images]);
        return WOB_TASK_READY;
      },
      instruction() {
        const utterance = core.getUtterance();
        return utterance.utterance ?? utterance;
      },
    };
    return;
  }

  const frame = () => new Promise(done => {
    const late = setTimeout(done, 100);  // a page that is not painted has no frames
    requestAnimationFrame(() => { clearTimeout(late); done(); });
  });

  const kept = new Map();  // address -> its frame, the one shown last at the end
  let shown = null, sentinels = 0;
  const stamp = document.createElement('div');
  stamp.id = 'verl-gui-stamp';
  const paint = color => {
    stamp.style.background = color;
    document.body.append(stamp);
  };
  // A page that the agent has left is no task any more.
  const at = url => { try { return shown.contentWindow.location.href === url; } catch { return false; } };
  const page = () => shown && at(shown.src) ? shown.contentWindow.verlGuiPage : null;
  const heard = async (expected, patience) => {
    const end = performance.now() + patience;
    while (sentinels < expected && performance.now() < end) await pause(1);
    const all = sentinels >= expected;
    sentinels = expected;
    return all;
  };

  window.verlGui = {
    hear() { sentinels += 1; },
    state: () => page()?.state() ?? {done: null, reward: null},
    evaluate: code => shown.contentWindow.eval(code),
    async show(url, limit, patience) {
      while (!document.body) await pause(2);
      shown?.classList.remove('shown');
      shown = kept.get(url);
      if (shown && !page()) shown.remove();
      if (!shown?.isConnected) {
        shown = document.createElement('iframe');
        shown.src = url;
        document.body.append(shown);
      }
      kept.delete(url);
      kept.set(url, shown);
      for (const [old, stale] of [...kept].slice(0, -limit)) { stale.remove(); kept.delete(old); }
      shown.classList.add('shown');
      const end = performance.now() + patience;
      while (!page()?.loaded()) {
        if (performance.now() > end) throw new Error('the page has no task: ' + url);
        await pause(2);
      }
      await page().dress();
      shown.contentWindow.focus();
    },
    async start(seed, expected, color) {
      await heard(expected, 1000);  // what the last episode left of input must not reach this one
      const ready = await page().start(seed);
      await frame();
      await frame();  // what lies under the pointer now is found out after the first
      paint(color);
      return {instruction: page().instruction(), ready};
    },
    async settle(expected, patience, color) {
      const handled = await heard(expected, patience);
      // What the page does at once or in its next frame is in the picture: the stamp joins that frame.
      await pause(0);
      await frame();
      paint(color);
      return {...this.state(), handled};
    },
  };
})();
"""


def boot_script(stamp_top: float) -> str:
    """The script that runs in every document before the document's own.

    Args:
        stamp_top: where the stamp goes, in CSS pixels from the top.
    """
    values = {"SENTINEL_CODE": "ControlRight", "STAMP_ROWS": f"{STAMP_ROWS}", "STAMP_TOP": f"{stamp_top:g}"}
    script = _BOOT_SCRIPT
    for name, value in values.items():
        script = script.replace(name, value)
    return script
