/** Shortcuts. Single letters, so they can be switched off; they stay silent while somebody types. */
import { find } from "../shared/dom.js";

/** What keys do. */
export interface Actions {
  toggle(): void;
  step(): void;
  restart(): void;
  faster(by: number): void;
  /** Kills an island, or starts it again. */
  island(index: number): void;
  presenter(): void;
  chapter(by: number): void;
  follow(): void;
}

/** Whether arrows lead through the chapters. */
export function listen(actions: Actions, isPresenting: () => boolean): void {
  const help = find("help", HTMLDialogElement);
  const off = find("keys-off", HTMLInputElement);
  find("help-open", HTMLButtonElement).addEventListener("click", () => help.showModal());
  find("help-close", HTMLButtonElement).addEventListener("click", () => help.close());
  const keys: Readonly<Record<string, () => void>> = {
    " ": () => actions.toggle(),
    ".": () => actions.step(),
    r: () => actions.restart(),
    "+": () => actions.faster(1),
    "-": () => actions.faster(-1),
    f: () => actions.follow(),
    p: () => actions.presenter(),
    n: () => actions.chapter(1),
    b: () => actions.chapter(-1),
    "?": () => help.showModal(),
  };
  // A button that was clicked has the focus as well, but nobody thinks of it: Space is for the run until Tab is pressed.
  let isTouched = false;
  document.addEventListener("pointerdown", () => (isTouched = true));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Tab") isTouched = false;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || help.open || off.checked) return;
    const target = event.target instanceof Element ? event.target : document.body;
    // Space presses a button, arrows move a slider: what has the focus comes first.
    const typing = target.closest("input, select, textarea, summary, [role=slider]") !== null;
    const pressing = !isTouched && target.closest("button, a") !== null && event.key === " ";
    if (typing || pressing) return;
    const arrows = isPresenting() ? { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key] : undefined;
    const act =
      arrows !== undefined
        ? () => actions.chapter(arrows)
        : /^[1-8]$/.test(event.key)
          ? () => actions.island(Number(event.key) - 1)
          : keys[event.key];
    if (!act) return;
    event.preventDefault();
    if (event.key === " " && target instanceof HTMLElement) target.blur();
    // A key that is held down does its deed once.
    if (!event.repeat) act();
  });
}
