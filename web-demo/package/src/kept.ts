/** What a browser keeps of a learner: its identity and the optimiser's moments, in IndexedDB. */

/** The optimiser's state after `steps` steps; each vector is as long as the parameters. */
export interface OptimiserState {
  readonly steps: number;
  readonly vectors: readonly Float32Array[];
}

/** What is kept for one syncer. */
interface Kept {
  readonly identity: string;
  readonly moments?: OptimiserState & { readonly run: string };
}

/** Bytes of a learner's secret. */
const IDENTITY_BYTES = 16;

/** Keeps things for one syncer; where storage is refused, only as long as it lives. */
export class Keeper {
  /** Why nothing is kept, if nothing is. */
  readonly refused: string | undefined;
  readonly #db: IDBDatabase | undefined;
  readonly #syncer: string;
  #kept: Kept;

  private constructor(syncer: string, kept: Kept, db: IDBDatabase | undefined, refused?: string) {
    this.#syncer = syncer;
    this.#kept = kept;
    this.#db = db;
    this.refused = refused;
  }

  /** What is kept for `syncer`; a fresh identity if that is nothing. Never fails. */
  static async open(syncer: string, remember: boolean): Promise<Keeper> {
    const fresh = { identity: randomHex(IDENTITY_BYTES) };
    if (!remember) return new Keeper(syncer, fresh, undefined);
    try {
      const db = await openDatabase();
      const kept: Kept | undefined = await request(store(db, "readonly").get(syncer));
      const keeper = new Keeper(syncer, kept ?? fresh, db);
      if (!kept) await keeper.#write();
      return keeper;
    } catch (error) {
      return new Keeper(syncer, fresh, undefined, error instanceof Error ? error.message : String(error));
    }
  }

  /** Whether other pages of this browser would find the same identity. */
  get shared(): boolean {
    return this.#db !== undefined;
  }

  /** The learner's secret as 32 hex digits. */
  get identity(): string {
    return this.#kept.identity;
  }

  /** The moments of `run`, if they are of a model with `params` parameters. */
  moments(run: string, params: number): OptimiserState | undefined {
    const { moments } = this.#kept;
    // An earlier release kept them under other names.
    const fits = moments?.vectors?.every((vector) => vector.length === params) ?? false;
    return moments?.run === run && fits ? moments : undefined;
  }

  /** Keeps the moments of `run`, in the background. */
  keep(run: string, moments: OptimiserState): void {
    this.#kept = { ...this.#kept, moments: { ...moments, run } };
    // A disk that is full costs the moments, not the training.
    this.#write().catch(() => {});
  }

  async #write(): Promise<void> {
    if (this.#db) await request(store(this.#db, "readwrite").put(this.#kept, this.#syncer));
  }
}

const STORE = "learners";

function openDatabase(): Promise<IDBDatabase> {
  const opening = indexedDB.open("archipelago", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  return request(opening);
}

function store(db: IDBDatabase, mode: IDBTransactionMode): IDBObjectStore {
  return db.transaction(STORE, mode).objectStore(STORE);
}

function request<T>(asked: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error ?? new Error("the browser's storage failed"));
  });
}

function randomHex(bytes: number): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, "0")).join(
    "",
  );
}
