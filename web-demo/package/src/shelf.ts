/** The frozen weights of runs in the browser's cache, each part under the name of its content. */

/** How many bytes are kept at most; what was kept first goes first. */
const BYTES_MAX = 2 * 2 ** 30;

const CACHE = "archipelago-frozen";

/** What a part is kept under: caches know things by addresses. Nobody is asked there. */
const address = (name: string) => `https://archipelago.invalid/frozen/${name}`;

/** Parts of frozen weights, for all runs of an origin. What is taken is checked by who takes it. */
export class Shelf {
  readonly #cache: Cache;
  /** The parts by their addresses, the first kept first, and the bytes of each. */
  readonly #held: Map<string, number>;

  private constructor(cache: Cache, held: Map<string, number>) {
    this.#cache = cache;
    this.#held = held;
  }

  /** The shelf of this origin; none where the browser keeps nothing, as for pages over plain http. */
  static async open(): Promise<Shelf | undefined> {
    try {
      const cache = await caches.open(CACHE);
      const held = new Map<string, number>();
      for (const { url } of await cache.keys()) {
        const kept = await cache.match(url);
        held.set(url, Number(kept?.headers.get("content-length") ?? 0));
      }
      return new Shelf(cache, held);
    } catch {
      return undefined;
    }
  }

  /** What is kept under `name`, if anything is. */
  async take(name: string): Promise<Uint8Array | undefined> {
    const kept = await this.#cache.match(address(name));
    return kept && new Uint8Array(await kept.arrayBuffer());
  }

  /** Keeps `bytes` under `name`; rejects if the browser has no room. */
  async keep(name: string, bytes: Uint8Array<ArrayBuffer>): Promise<void> {
    const total = () => [...this.#held.values()].reduce((sum, held) => sum + held, bytes.length);
    for (const url of this.#held.keys()) {
      if (total() <= BYTES_MAX) break;
      this.#held.delete(url);
      await this.#cache.delete(url);
    }
    const headers = { "content-length": String(bytes.length), "content-type": "application/octet-stream" };
    await this.#cache.put(address(name), new Response(bytes, { headers }));
    this.#held.set(address(name), bytes.length);
  }
}
