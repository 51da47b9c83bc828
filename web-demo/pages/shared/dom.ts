/** Small helpers for elements. Foreign text is inserted as text, never as markup. */

/** Returns the element with this id, which must be a `kind`. */
export function find<T extends Element>(id: string, kind: new () => T): T {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} with the id "${id}"`);
  return found;
}

/** Sets an element's text if it differs: an unchanged text costs no layout and is not announced again. */
export function setText(node: Element, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

/** Time for which a repeated text is blank, in milliseconds: long enough to be seen and announced. */
const BLANK_MS = 120;

/** Sets the text of an element that waited for it, and removes its `aria-busy`. */
export function fillText(node: Element, text: string): void {
  setAttribute(node, "aria-busy", null);
  setText(node, text);
}

/** Announces `text` in a live region, even if it repeats the last one. */
export function say(node: Element, text: string): void {
  if (node.textContent !== text) return setText(node, text);
  setText(node, "");
  // Unless another text was announced meanwhile.
  setTimeout(() => node.textContent === "" && setText(node, text), BLANK_MS);
}

/** Sets an attribute, or removes it for `null`, if it differs. */
export function setAttribute(node: Element, name: string, value: string | null): void {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Restarts an element's animation, which its class `now` has. */
export function play(element: Element): void {
  element.classList.remove("now");
  // Reading the box makes the browser notice the removed class.
  element.getBoundingClientRect();
  element.classList.add("now");
}

/** Creates an element with attributes and children; strings become text. */
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
 * Gives `element` as many rows as there are `items`, reusing existing rows: `blank` creates a row, `fill`
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
