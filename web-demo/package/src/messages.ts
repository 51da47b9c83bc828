/** Messages between the page's side of the package and its Worker; internal. */
import type { Measured, RawMeasure, Report } from "./generated.js";
import type { EngineKind, ErrorCode, LearnerEvent } from "./types.js";

/** Page to Worker. */
export type ToWorker =
  | { readonly do: "join"; readonly wasmUrl: string; readonly options: WorkerJoin }
  | { readonly do: "measure"; readonly wasmUrl: string; readonly options: RawMeasure }
  | { readonly do: "pause" | "resume" | "stop" | "reconnect" | "loseDevice" }
  | { readonly do: "read"; readonly id: number; readonly wasmUrl: string; readonly syncer: string }
  | ({ readonly do: "write" } & ToWrite)
  /** Cancels the request with this id. */
  | { readonly do: "hush"; readonly id: number }
  | { readonly do: "setShare"; readonly share: number }
  | { readonly do: "setHidden"; readonly hidden: boolean };

/** A Worker's settings for joining. */
export interface WorkerJoin {
  readonly syncer: string;
  readonly name: string;
  readonly engine: EngineKind;
  readonly helpers: number;
  readonly share: number;
  readonly batch: number | null;
  readonly contactMsMax: number;
  readonly remember: boolean;
}

/** A request to continue a text. */
export interface ToWrite {
  /** Repeated in each reply. */
  readonly id: number;
  readonly prompt: string;
  readonly temperature: number;
  readonly tokens: number;
  readonly seed: number;
}

/** Worker to page. */
export type FromWorker =
  | { readonly is: "event"; readonly event: LearnerEvent }
  | { readonly is: "ended"; readonly report: Report }
  | { readonly is: "measured"; readonly measured: Measured }
  /** Number of bytes received for a reading since the last message; the reading may still fail. */
  | { readonly is: "fetched"; readonly id: number; readonly bytes: number }
  | { readonly is: "read"; readonly id: number; readonly params: number }
  | { readonly is: "wrote"; readonly id: number; readonly text: string }
  /** The text is finished or cancelled. */
  | { readonly is: "written"; readonly id: number }
  | { readonly is: "failed"; readonly id?: number; readonly code: ErrorCode; readonly message: string };
