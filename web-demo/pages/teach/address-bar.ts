/** The link in the address bar, which follows the displayed moment. */

/** Least time between two changes of the link, in milliseconds: browsers refuse more. */
const ADDRESS_MS = 500;

export class AddressBar {
  readonly #hash: () => string;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #writtenAtMs = -ADDRESS_MS;
  /** The fragment last read or written. A different fragment in the address means that the visitor is leaving. */
  #known = "";

  /** `hash` returns the fragment for the displayed moment. */
  constructor(hash: () => string) {
    this.#hash = hash;
  }

  /** Returns the fragment that the visitor gave, by a link or by hand. */
  read(): string {
    this.#known = location.hash;
    return this.#known;
  }

  /** Schedules an update of the link after a change of the display. */
  later(): void {
    this.#timer ??= setTimeout(
      () => {
        this.#timer = undefined;
        this.#writtenAtMs = performance.now();
        if (location.hash !== this.#known) return;
        window.history.replaceState(null, "", this.#hash());
        this.#known = location.hash;
      },
      this.#writtenAtMs + ADDRESS_MS - performance.now(),
    );
  }
}
