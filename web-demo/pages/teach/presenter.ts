/** Projector mode: large type, strong contrast, and only the run. */
import { find, setAttribute } from "../shared/dom.js";
import { themeChanged } from "../shared/palette.js";

/** Whether the page is in projector mode. */
export function isPresenting(): boolean {
  return document.documentElement.classList.contains("presenter");
}

export class Presenter {
  readonly #button = find("presenter", HTMLButtonElement);

  set(on: boolean): void {
    document.documentElement.classList.toggle("presenter", on);
    setAttribute(this.#button, "aria-pressed", String(on));
    themeChanged();
  }

  get isOn(): boolean {
    return isPresenting();
  }
}
