"""Accessibility of a page in a browser: keyboard navigation, accessible names, contrast."""

from __future__ import annotations

from typing import Any

from tests.support.browser import Browser

TAB = "\ue004"
NAMED = {
    "link",
    "button",
    "image",
    "table",
    "meter",
    "searchbox",
    "textbox",
    "checkbox",
    "navigation",
    "list",
}
"""Roles that need an accessible name."""

_MARK = """
const all = [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')];
const seen = all.filter((one) => one.type !== 'hidden' && !one.hidden && !one.closest('svg'));
seen.forEach((one, number) => { one.dataset.number = number; });
document.activeElement.blur();
return seen.map((one) => one.outerHTML.slice(0, 120));
"""
_FOCUSED = """
const one = document.activeElement;
const style = getComputedStyle(one);
const box = one.getBoundingClientRect();
return {
  number: one.dataset.number === undefined ? null : Number(one.dataset.number),
  ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
  inside: box.width > 0 && box.height > 0 && box.right > 0 && box.bottom > 0 &&
    box.left < innerWidth && box.top < innerHeight,
};
"""
_FAINT = """
const channel = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const parts = (text) => text.match(/[0-9.]+/g).map(Number);
const share = [0.2126, 0.7152, 0.0722];
const light = (colour) => share.reduce((sum, one, at) => sum + one * channel(colour[at] / 255), 0);
const back = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const found = parts(getComputedStyle(at).backgroundColor);
    if (found.length < 4 || found[3] === 1) return found;
    if (found[3] > 0) throw new Error('half transparent');
  }
  return [255, 255, 255];
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let texts = 0;
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement;
  if (!walker.currentNode.data.trim() || one.closest('svg') || !one.getClientRects().length) continue;
  texts += 1;
  const [a, b] = [light(parts(getComputedStyle(one).color)), light(back(one))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
}
return { texts, found };
"""


def reached_by_tab(seen: Browser) -> tuple[list[str], list[str]]:
    """Tab through a page.

    :returns: the focusable elements in order, and those not reached in that order with a visible focus.
    """
    elements = seen.run(_MARK)
    wrong = []
    for number, element in enumerate(elements):
        seen.press(TAB)
        focused = seen.run(_FOCUSED)
        if focused != {"number": number, "ring": True, "inside": True}:
            wrong.append(f"{element}: {focused}")
    return elements, wrong


def names(seen: Browser) -> list[tuple[str, str]]:
    """Return role and name of all elements for screen readers whose role needs a name."""
    tree: list[dict[str, Any]] = seen.tell("Accessibility.getFullAXTree")["nodes"]
    exposed = [node for node in tree if not node["ignored"]]
    pairs = [(node["role"]["value"], node.get("name", {}).get("value", "").strip()) for node in exposed]
    return [(role, name) for role, name in pairs if role in NAMED]


def faint(seen: Browser) -> tuple[int, list[str]]:
    """Return the number of texts on a page, and those with a contrast below 4.5 to their background."""
    answer = seen.run(_FAINT)
    return answer["texts"], answer["found"]
