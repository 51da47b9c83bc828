/** The link in the address bar, which follows what is seen. */

/** The link changes so often at most, in milliseconds: browsers refuse more. */
const ADDRESS_MS = 500;

export class AddressBar {
  readonly #hash: () => string;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #writtenAtMs = -ADDRESS_MS;
  /** The fragment that was last read or written. With another one in the address, somebody is on the way elsewhere. */
  #known = "";

  /** `hash` gives the fragment for what is seen now. */
  constructor(hash: () => string) {
    this.#hash = hash;
  }

  /** The fragment that somebody gave, by a link or by hand. */
  read(): string {
    this.#known = location.hash;
    return this.#known;
  }

  /** What is seen changed: the link follows soon. */
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
