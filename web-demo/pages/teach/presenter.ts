/** For a projector: large type, strong contrast, no knobs. */
import { find, setAttribute } from "../shared/dom.js";
import { themeChanged } from "../shared/palette.js";

export class Presenter {
  readonly #button = find("presenter", HTMLButtonElement);

  toggle(): void {
    const on = document.documentElement.classList.toggle("presenter");
    setAttribute(this.#button, "aria-pressed", String(on));
    themeChanged();
  }

  get isOn(): boolean {
    return document.documentElement.classList.contains("presenter");
  }
}
