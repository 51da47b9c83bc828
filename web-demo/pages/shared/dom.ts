/** The few things that pages do with elements. Text from others goes in as text, never as markup. */

/** The element with this id, which must be a `kind`. */
export function find<T extends Element>(id: string, kind: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} with the id "${id}"`);
  return found;
}

/** Sets an element's text if it differs: an unchanged text costs no layout and is not announced again. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** Blank for so long before the same text again, in milliseconds: long enough to be seen, and heard. */
const BLANK_MS = 120;

/** Sets the text of an element that waited for it, and removes its `aria-busy`. */
export function fillText(node: Element, text: string): void {
  setAttribute(node, "aria-busy", null);
  setText(node, text);
}

/** Says `text` in a place for news, even if it was the last that was said there. */
export function say(node: Element, text: string): void {
  if (node.textContent !== text) return setText(node, text);
  setText(node, "");
  // Unless something else was said meanwhile.
  setTimeout(() => node.textContent === "" && setText(node, text), BLANK_MS);
}

/** Sets or, with `null`, takes away an attribute, if it differs. */
export function setAttribute(node: Element, name: string, value: string | null): void {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Begins an element's animation, which its class `now` has, from its beginning. */
export function play(element: Element): void {
  element.classList.remove("now");
  // Asking for the box makes the browser see the class go.
  element.getBoundingClientRect();
  element.classList.add("now");
}

/** A new element with attributes and children; strings become text. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Readonly<Record<string, string>> = {},
  ...children: readonly (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * Gives `element` as many rows as there are `items`, reusing those that are there: `blank` makes one, `fill`
 * writes an item into it.
 */
export function fillRows<T, R extends Element>(
  element: Element,
  items: readonly T[],
  blank: () => R,
  fill: (row: R, item: T) => void,
): void {
  while (element.childElementCount > items.length) element.lastElementChild?.remove();
  items.forEach((item, index) => {
    const row = (element.children[index] as R | undefined) ?? element.appendChild(blank());
    fill(row, item);
  });
}
