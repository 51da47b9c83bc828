/** A course of values in bounded room: each mean stands for as many values as any other. */

/** Means kept; when there are so many, neighbours are merged. */
const MEANS_MAX = 600;

export class Means {
  #all: number[] = [];
  /** Values in a mean. */
  #each = 1;
  /** Sum and count of the values that do not fill a mean yet. */
  #sum = 0;
  #count = 0;
  /** The first value and the last one, as they came. */
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
    // An even number: none is left over.
    this.#all = Array.from({ length: MEANS_MAX / 2 }, (_, at) => (this.#all[2 * at]! + this.#all[2 * at + 1]!) / 2);
    this.#each *= 2;
  }

  get all(): readonly number[] {
    return this.#all;
  }
}
