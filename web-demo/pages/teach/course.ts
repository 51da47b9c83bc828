/** A series of measurements in bounded memory, evenly spaced over any time. */

/** A measurement of the held-out loss. */
export interface HeldOut {
  readonly atMs: number;
  readonly loss: number;
  readonly tokens: number;
}

/** Limit of stored measurements; at the limit every second one goes, and later ones are thinned alike. */
const KEPT_MAX = 400;

export class Course {
  #kept: HeldOut[] = [];
  /** Interval of stored measurements. */
  #stride = 1;
  #count = 0;
  #last: HeldOut | undefined;

  push(measured: HeldOut): void {
    if (this.#count % this.#stride === 0) this.#kept.push(measured);
    this.#count += 1;
    this.#last = measured;
    if (this.#kept.length <= KEPT_MAX) return;
    this.#kept = this.#kept.filter((_, at) => at % 2 === 0);
    this.#stride *= 2;
  }

  /** The stored measurements, by time: the first, and always the last. */
  get all(): readonly HeldOut[] {
    return this.#last === undefined || this.#kept.at(-1) === this.#last ? this.#kept : [...this.#kept, this.#last];
  }
}
