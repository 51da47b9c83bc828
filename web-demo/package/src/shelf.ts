/** Frozen weights of runs in the browser's cache, each part under its content hash. */

/** Limit of cached bytes; the oldest parts go first. */
const BYTES_MAX = 2 * 2 ** 30;

const CACHE = "archipelago-frozen";

/** Key of a part: caches are keyed by addresses. No request goes to this one. */
const address = (name: string) => `https://archipelago.invalid/frozen/${name}`;

/** Parts of frozen weights, shared by all runs of an origin. The caller checks what it takes. */
export class Shelf {
  readonly #cache: Cache;
  /** Size of each part by address, oldest first. */
  readonly #held: Map<string, number>;

  private constructor(cache: Cache, held: Map<string, number>) {
    this.#cache = cache;
    this.#held = held;
  }

  /** Opens the shelf of this origin; undefined where the browser has no cache, as for pages over plain http. */
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

  /** Returns the bytes stored under `name`, if any. */
  async take(name: string): Promise<Uint8Array | undefined> {
    const kept = await this.#cache.match(address(name));
    return kept && new Uint8Array(await kept.arrayBuffer());
  }

  /** Stores `bytes` under `name`; rejects if the browser has no room. */
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
