/** A series of values in bounded memory: each mean covers the same number of values. */

/** Limit of means; at the limit, neighbours are merged. */
const MEANS_MAX = 600;

export class Means {
  #all: number[] = [];
  /** Values per mean. */
  #each = 1;
  /** Sum and count of values that do not yet fill a mean. */
  #sum = 0;
  #count = 0;
  /** The first and last value, unaveraged. */
  first: number | undefined;
  last: number | undefined;

  push(value: number): void {
    this.first ??= value;
    this.last = value;
    this.#sum += value;
    this.#count += 1;
    if (this.#count < this.#each) return;
    this.#all.push(this.#sum / this.#each);
    this.#sum = this.#count = 0;
    if (this.#all.length < MEANS_MAX) return;
    // The limit is even, so every mean has a partner.
    this.#all = Array.from({ length: MEANS_MAX / 2 }, (_, at) => (this.#all[2 * at]! + this.#all[2 * at + 1]!) / 2);
    this.#each *= 2;
  }

  get all(): readonly number[] {
    return this.#all;
  }
}
