/** Keyboard shortcuts. Single letters can be switched off; all are inactive during typing. */
import { find } from "../shared/dom.js";

/** Actions of keys. */
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

/** Whether arrow keys lead through the chapters. */
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
  // A click also focuses a button, unnoticed: Space plays and pauses the run until Tab is pressed.
  let isTouched = false;
  document.addEventListener("pointerdown", () => (isTouched = true));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Tab") isTouched = false;
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || help.open || off.checked) return;
    const target = event.target instanceof Element ? event.target : document.body;
    // Space presses a button and arrows move a slider: the focused element comes first.
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
    // A held key acts once.
    if (!event.repeat) act();
  });
}
