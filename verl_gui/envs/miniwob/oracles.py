"""Scripted experts for MiniWoB++ pages: what to do next, read from the page's DOM.

An oracle is called once a turn and returns the actions of that turn. It looks at the page, never at the
picture, so it serves for demonstrations and for checking the environment.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from verl_gui.actions import Action, ActionType
from verl_gui.envs.miniwob.env import MiniwobEnv

Oracle = Callable[[MiniwobEnv, "random.Random | None"], list[Action]]

# A point reaches an element if the page would give a click there to the element.
_ELEMENTS_SCRIPT = r"""
(() => {
  const KINDS = [
    ['query', '#query'],
    ['button', 'button, input[type=button], input[type=submit]'],
    ['checkbox', 'input[type=checkbox]'],
    ['radio', 'input[type=radio]'],
    ['textarea', 'textarea'],
    ['select', 'select'],
    ['slider', '.ui-slider-handle'],
    ['text', '#area input'],  // every input that is none of the above
    ['tab', '.ui-tabs-anchor'],
    ['link', 'a[href], .alink'],
    ['label', 'label'],
    ['header', '.ui-accordion-header, h3'],
    ['color', '#area .color'],
    ['shape', '#area svg circle, #area svg rect, #area svg polygon, #area svg text'],
    ['dialog', '.ui-dialog'],
    ['paragraph', '#area p'],
  ];
  const SPOTS = [[.5, .5], [.25, .5], [.75, .5], [.5, .25], [.5, .75], [.15, .15], [.85, .15],
                 [.15, .85], [.85, .85], [.08, .5], [.92, .5], [.5, .08], [.5, .92]];
  const DRAWN = {circle: 'circle', rect: 'rectangle', polygon: 'triangle'};

  const reached = (element, x, y) => {
    const top = document.elementFromPoint(x, y);
    return !!top && (element === top || element.contains(top));
  };
  const shape = element => {
    const name = DRAWN[element.tagName] || element.textContent;
    const drawn = element.tagName in DRAWN;
    const extent = drawn ? element.getBBox().width : parseFloat(element.getAttribute('font-size'));
    return {name, color: element.getAttribute('fill'), size: extent > 15 ? 'large' : 'small',
            type: drawn ? 'shape' : /\d/.test(name) ? 'digit' : 'letter'};
  };
  const words = (element, kind) => {
    if (kind === 'color') return element.getAttribute('data-color');
    if (['text', 'textarea', 'select'].includes(kind)) return element.value;
    if (kind === 'checkbox' || kind === 'radio') return element.closest('label')?.textContent;
    return element.textContent;
  };

  const seen = new Set(), found = [];
  for (const [kind, selector] of KINDS) for (const element of document.querySelectorAll(selector)) {
    if (seen.has(element) || element.closest('#reward-display, #sync-task-cover')) continue;
    seen.add(element);
    const box = element.getBoundingClientRect();
    const x0 = Math.max(0, box.left), y0 = Math.max(0, box.top);
    const x1 = Math.min(SCREEN_WIDTH, box.right), y1 = Math.min(SCREEN_HEIGHT, box.bottom);
    if (x1 - x0 < 1 || y1 - y0 < 1 || getComputedStyle(element).visibility === 'hidden') continue;
    const spots = SPOTS.map(([u, v]) => [x0 + u * (x1 - x0), y0 + v * (y1 - y0)]);
    found.push({
      kind, id: element.id, css: [x0, y0, x1, y1],
      text: (words(element, kind) || '').replace(/\s+/g, ' ').trim(),
      checked: !!element.checked, focused: document.activeElement === element,
      visible: reached(element, ...spots[0]), spot: spots.find(spot => reached(element, ...spot)) || null,
      ...(kind === 'shape' ? shape(element) : {}),
    });
  }
  return found;
})()
"""


class OracleError(RuntimeError):
    """An oracle does not find what it looks for on the page."""


def elements(env: MiniwobEnv) -> list[dict[str, Any]]:
    """The elements that can be seen on the screen, in the order of their kinds.

    Each is a dict with

    - ``kind``: ``query`` (the instruction), ``button``, ``checkbox``, ``radio``, ``textarea``, ``select``,
      ``slider``, ``text``, ``tab``, ``link``, ``label``, ``header``, ``color``, ``shape``, ``dialog`` or
      ``paragraph``;
    - ``text``: its words, value or colour;
    - ``box``: (x0, y0, x1, y1) in screen pixels, clipped to the screen;
    - ``spot``: a point (x, y) in screen pixels at which a click reaches it; None when it is covered;
    - ``visible``: whether its middle can be clicked; ``checked``; ``focused``; ``id``;
    - of shapes also ``name``, ``color``, ``size`` and ``type``.
    """
    width, height = (pixels / env.scale for pixels in env.screen)
    script = _ELEMENTS_SCRIPT.replace("SCREEN_WIDTH", str(width)).replace("SCREEN_HEIGHT", str(height))
    found = env.script(script)
    for element in found:
        element["box"] = tuple(value * env.scale for value in element.pop("css"))
        if element["spot"] is not None:
            element["spot"] = tuple(value * env.scale for value in element["spot"])
        if element["kind"] == "shape":
            element["text"] = f"{element['color']} {element['name']}"
    return found


def oracle(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """The next expert actions for the task that ``env`` shows.

    Args:
        env: an environment in the middle of an episode.
        rng: where to click within an element; None clicks its middle.

    Raises:
        KeyError: there is no oracle for this task.
        OracleError: the page does not show what the oracle expects.
    """
    return ORACLES[env.task_name](env, rng)


def _click(element: dict[str, Any], rng: random.Random | None) -> list[Action]:
    if element["spot"] is None:
        raise OracleError(f"the {element['kind']} {element['text']!r} is covered")
    x, y = element["spot"]
    if rng is not None and element["visible"]:
        x0, y0, x1, y1 = element["box"]
        x += rng.uniform(-0.25, 0.25) * (x1 - x0)
        y += rng.uniform(-0.25, 0.25) * (y1 - y0)
    return [Action(ActionType.CLICK, x=x, y=y)]


def _only(found: list[dict[str, Any]], what: str) -> dict[str, Any]:
    """The first of ``found`` that can be clicked."""
    for element in found:
        if element["spot"] is not None:
            return element
    raise OracleError(f"no {what} to click among {len(found)} found")


def _query(env: MiniwobEnv) -> str:
    return env.script("(u => u.utterance ?? u)(core.getUtterance())")


def _quoted(env: MiniwobEnv) -> str:
    match = re.search(r'"(.*)"', _query(env))
    if match is None:
        raise OracleError(f"nothing quoted in {_query(env)!r}")
    return match.group(1)


def _of(env: MiniwobEnv, *kinds: str) -> list[dict[str, Any]]:
    return [element for element in elements(env) if element["kind"] in kinds]


def _named(env: MiniwobEnv, text: str, *kinds: str) -> dict[str, Any]:
    return _only([element for element in _of(env, *kinds) if element["text"] == text], f"{kinds[0]} {text!r}")


def _by_id(env: MiniwobEnv, name: str) -> dict[str, Any]:
    return _only([element for element in elements(env) if element["id"] == name], f"element #{name}")


def click_test(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the only button, or the button ONE."""
    return _click(_by_id(env, "subbtn"), rng)


def click_button_sequence(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click ONE, then TWO, a turn each."""
    return _click(_by_id(env, "subbtn2" if env.script("buttonsPushed.length") else "subbtn"), rng)


def click_color(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the box of the colour asked for."""
    match = re.search(r"on the (.+?);? colored box", _query(env))
    if match is None:
        raise OracleError(f"no colour in {_query(env)!r}")
    return _click(_named(env, match.group(1), "color"), rng)


def click_dialog(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Close the dialog with its x."""
    return _click(_only(_of(env, "button"), "close button"), rng)


def click_dialog_2(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the dialog's button with the name asked for; x is the one in its title bar."""
    wanted = _quoted(env)
    return _click(_named(env, "Close" if wanted == "x" else wanted, "button"), rng)


def focus_text(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the text field."""
    return _click(_only(_of(env, "text"), "text field"), rng)


def focus_text_2(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the first, second or third text field."""
    match = re.search(r"the (\d)", _query(env))
    if match is None:
        raise OracleError(f"no number in {_query(env)!r}")
    return _click(_of(env, "text")[int(match.group(1)) - 1], rng)


def click_button(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the button with the quoted name."""
    return _click(_named(env, _quoted(env), "button"), rng)


def click_link(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the link with the quoted text."""
    return _click(_named(env, _quoted(env), "link"), rng)


def click_tab(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the tab with the number asked for."""
    match = re.search(r"Tab #\d", _query(env))
    if match is None:
        raise OracleError(f"no tab in {_query(env)!r}")
    return _click(_named(env, match.group(), "tab"), rng)


def click_widget(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click any widget of the kind asked for."""
    return _click(_only(_of(env, _quoted(env)), _quoted(env)), rng)


def click_shape(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click a shape that fits: perhaps a size, perhaps a colour, and a name, a type or "item"."""
    words = _query(env).removeprefix("Click on a ").split()
    fitting = [shape for shape in _of(env, "shape") if all(_fits(shape, word) for word in words)]
    return _click(_only(fitting, f"shape {' '.join(words)!r}"), rng)


def _fits(shape: dict[str, Any], word: str) -> bool:
    return word in ("item", shape["size"], shape["color"], shape["name"], shape["type"])


def select_and_submit(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Set one box or option a turn, as asked for, then submit."""
    match = re.search(r"Select (.*) and click Submit", _query(env))
    if match is None:
        raise OracleError(f"nothing to select in {_query(env)!r}")
    wanted = set(match.group(1).split(", "))
    for option in _of(env, "checkbox", "radio"):
        if option["text"] in wanted and not option["checked"]:
            return _click(option, rng)
    return _click(_named(env, "Submit", "button"), rng)


def enter_text(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Click the field, type the quoted text, submit, a turn each."""
    wanted, field = _quoted(env), _only(_of(env, "text"), "text field")
    if field["text"] == wanted:
        return _click(_named(env, "Submit", "button"), rng)
    return [Action(ActionType.TYPE, text=wanted)] if field["focused"] else _click(field, rng)


def enter_password(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Fill both fields with the quoted password, then submit."""
    return _fill(env, {"password": _quoted(env), "verify": _quoted(env)}, rng)


def login_user(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Fill in the name and the password, the first and the second quoted text, then log in."""
    quoted = re.findall(r'"(.*?)"', _query(env))
    if len(quoted) != 2:
        raise OracleError(f"expected a name and a password in {_query(env)!r}")
    return _fill(env, dict(zip(("username", "password"), quoted, strict=True)), rng)


def simple_arithmetic(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Type the value of the sum, difference or product that the page shows, then submit."""
    problem = env.script("document.querySelector('#math-problem').textContent")
    match = re.fullmatch(r"(\d+) ([-+x]) (\d+) = ", problem)
    if match is None:
        raise OracleError(f"no problem in {problem!r}")
    left, right = int(match.group(1)), int(match.group(3))
    value = {"+": left + right, "-": left - right, "x": left * right}[match.group(2)]
    return _fill(env, {"math-answer": str(value)}, rng)


def click_collapsible(env: MiniwobEnv, rng: random.Random | None = None) -> list[Action]:
    """Open the section, then submit."""
    if env.script("document.querySelectorAll('.ui-accordion-header-active').length"):
        return _click(_by_id(env, "subbtn"), rng)
    return _click(_only(_of(env, "header"), "section header"), rng)


def _fill(env: MiniwobEnv, wanted: dict[str, str], rng: random.Random | None) -> list[Action]:
    """Bring the next field (by its id) to its text, a click or a text a turn; submit when all are right."""
    for name, text in wanted.items():
        field = _by_id(env, name)
        if field["text"] != text:
            return [Action(ActionType.TYPE, text=text)] if field["focused"] else _click(field, rng)
    return _click(_by_id(env, "subbtn"), rng)


ORACLES: dict[str, Oracle] = {
    "click-test": click_test,
    "click-test-2": click_test,
    "click-test-transfer": click_test,
    "click-button": click_button,
    "click-button-sequence": click_button_sequence,
    "click-checkboxes": select_and_submit,
    "click-checkboxes-transfer": select_and_submit,
    "click-collapsible": click_collapsible,
    "click-color": click_color,
    "click-dialog": click_dialog,
    "click-dialog-2": click_dialog_2,
    "click-link": click_link,
    "click-option": select_and_submit,
    "click-shape": click_shape,
    "click-tab": click_tab,
    "click-widget": click_widget,
    "enter-password": enter_password,
    "enter-text": enter_text,
    "enter-text-dynamic": enter_text,
    "focus-text": focus_text,
    "focus-text-2": focus_text_2,
    "login-user": login_user,
    "simple-arithmetic": simple_arithmetic,
}
"""Task name → its expert."""
