/** The learner's Worker: loads the engine and relays events and requests. */

import type { Learner } from "../dist/wasm/plain/archipelago.js";
import { alone } from "./alone.js";
import { hasRelaxedSimd } from "./check.js";
import type { FromHelper, ToHelper } from "./helper.js";
import { answer, Helper } from "./helper.js";
import type { OptimiserState } from "./kept.js";
import { Keeper } from "./kept.js";
import type { FromWorker, ToWorker, WorkerJoin } from "./messages.js";
import { Shelf } from "./shelf.js";
import type { ErrorCode, LearnerEvent, RawJoin, RawMeasure } from "./types.js";
import { Desk } from "./writing.js";

type Engine = typeof import("../dist/wasm/plain/archipelago.js");

/** Steps between two saves of the moments. */
const SAVE_STEPS = 200;

const scope = self as unknown as {
  onmessage: (message: MessageEvent<ToWorker | ToHelper>) => void;
  postMessage(message: FromWorker): void;
  postMessage(message: FromHelper, transfer?: Transferable[]): void;
};

/** Text generation in this Worker, if it is used. */
const desk = new Desk();

/** Holds requests until the learner exists. */
let learner: Learner | undefined;
const waiting: ToWorker[] = [];

scope.onmessage = ({ data }) => {
  if (data.do === "join") void tellFailure(join(data.wasmUrl, data.options));
  else if (data.do === "measure") void tellFailure(measure(data.wasmUrl, data.options));
  else if (data.do === "help") help(data);
  else if (data.do === "read") void tellFailure(read(data.wasmUrl, data.syncer, data.id), data.id);
  else if (data.do === "write") void tellFailure(desk.write(data, tellPage), data.id);
  else if (data.do === "hush") desk.hush(data.id);
  else if (data.do === "part")
    return; // From here on a helper listens instead.
  else if (learner) act(learner, data);
  else waiting.push(data);
};

function act(learner: Learner, message: ToWorker): void {
  switch (message.do) {
    case "pause":
    case "resume":
    case "stop":
    case "reconnect":
    case "loseDevice":
      learner[message.do]();
      break;
    case "setShare":
      learner.setShare(message.share);
      break;
    case "setHidden":
      learner.setHidden(message.hidden);
  }
}

/** Turns this Worker into a helper. */
function help({ wasmUrl, model, windows }: Extract<ToHelper, { do: "help" }>): void {
  const broken = (error: unknown) => scope.postMessage({ is: "broken", message: String(error) });
  const ready = load(wasmUrl).then((engine) => new engine.Differentiator(model, windows));
  ready.catch(broken);
  scope.onmessage = ({ data }) => {
    if (data.do !== "part") return;
    const done = ready.then((differentiator) => scope.postMessage(answer(differentiator, data), [data.params.buffer]));
    done.catch(broken);
  };
}

/** Returns the function that starts helpers with the engine from `wasmUrl`. */
function team(wasmUrl: string) {
  return { start: (model: unknown, windows: number) => new Helper(wasmUrl, model, windows) };
}

async function join(wasmUrl: string, options: WorkerJoin): Promise<void> {
  const engine = await load(wasmUrl);
  const { syncer, name, helpers, share, batch, contactMsMax } = options;
  const place = syncer.replace(/#.*$/s, "");
  const keeper = await Keeper.open(place, options.remember);
  const shelf = options.remember ? await Shelf.open() : undefined;
  if (keeper.refused) tell({ event: "forgetful", reason: keeper.refused });
  if (!keeper.browserSigns) tell({ event: "softKey" });
  const takePart = async () => {
    let run = "";
    const hooks = {
      event: (event: LearnerEvent) => {
        if (event.event === "preparing") run = event.run;
        tell(event);
      },
      save: (steps: number, vectors: Float32Array[]) => keeper.keep(run, { steps, vectors }),
      sign: (text: Uint8Array<ArrayBuffer>) => keeper.sign(text),
      restore: async (params: number): Promise<OptimiserState | undefined> => keeper.moments(run, params),
      takeKept: async (part: string) => shelf?.take(part),
      keep: async (part: string, bytes: Uint8Array<ArrayBuffer>) => shelf?.keep(part, bytes),
    };
    learner = new engine.Learner();
    for (const message of waiting.splice(0)) act(learner, message);
    const saveSteps = options.remember ? SAVE_STEPS : 0;
    const report = await learner.run(
      {
        syncer,
        name,
        engine: options.engine,
        helpers,
        share,
        batch,
        contactMsMax,
        identity: keeper.identity,
        browserSigns: keeper.browserSigns,
        saveSteps,
        keeps: shelf !== undefined,
      } satisfies RawJoin,
      hooks,
      team(wasmUrl),
    );
    scope.postMessage({ is: "ended", report });
  };
  if (keeper.shared) await alone(`archipelago ${place}`, () => tell({ event: "standby" }), takePart);
  else await takePart();
}

async function measure(wasmUrl: string, options: RawMeasure): Promise<void> {
  const engine = await load(wasmUrl);
  scope.postMessage({ is: "measured", measured: await engine.measure(options, team(wasmUrl)) });
}

async function read(wasmUrl: string, syncer: string, id: number): Promise<void> {
  await desk.read(await load(wasmUrl), syncer, id, tellPage);
}

function tellPage(message: FromWorker): void {
  scope.postMessage(message);
}

/** Loads the engine that fits this browser, from `wasmUrl` if given. */
async function load(wasmUrl: string): Promise<Engine> {
  const relaxed = hasRelaxedSimd();
  try {
    const engine: Engine = relaxed
      ? await import("../dist/wasm/relaxed/archipelago.js")
      : await import("../dist/wasm/plain/archipelago.js");
    const build = relaxed ? "relaxed" : "plain";
    if (wasmUrl) await engine.default({ module_or_path: new URL(`${build}/archipelago_bg.wasm`, wasmUrl) });
    else await engine.default();
    return engine;
  } catch (error) {
    throw Object.assign(new Error(`the engine could not be loaded: ${error}`), { code: "load" });
  }
}

function tell(event: LearnerEvent): void {
  scope.postMessage({ is: "event", event });
}

/** The package's codes are strings; errors of the browser have numbers and count as "worker". */
function codeOf(error: unknown): ErrorCode {
  const { code } = (error ?? {}) as { code?: unknown };
  return typeof code === "string" ? (code as ErrorCode) : "worker";
}

async function tellFailure(work: Promise<void>, id?: number): Promise<void> {
  try {
    await work;
  } catch (error) {
    const failed = { code: codeOf(error), message: error instanceof Error ? error.message : String(error) };
    scope.postMessage({ is: "failed", ...failed, ...(id === undefined ? {} : { id }) });
  }
}
