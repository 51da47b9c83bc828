/** Writes the columns of a run to a file, and reads them back. */
import type { Evaluation } from "../shared/api.js";
import { emptyRun, type Run } from "./columns.js";

/** Columns of points, by their heading in a file. */
const POINTS = {
  timeS: "time (s)",
  tokensMerged: "tokens merged",
  rounds: "rounds merged",
  trainLoss: "training loss (nats per token)",
  tokensPerS: "speed (tokens per s)",
  participation: "participation (0 to 1)",
  live: "learners in rounds",
  bytesUp: "from learners (bytes)",
  bytesDown: "to learners (bytes)",
} as const;
type Name = keyof typeof POINTS;
const NAMES = Object.keys(POINTS) as Name[];
/** Heading of the last column; a row with a value in it is an evaluation without a point's figures. */
const HELD_OUT = "held-out loss (nats per token)";
const OF_EVALUATIONS: readonly Name[] = ["timeS", "tokensMerged", "rounds"];

/** Limit of rows in a file; a syncer sends 600 points. */
const ROWS_MAX = 100_000;
/** Limit of a file's size, in bytes. */
export const FILE_BYTES_MAX = 16 << 20;

/** Returns all columns of `run`: a row for each point and for each evaluation, by time. */
export function toCsv(run: Run): string {
  const points = run.timeS.map((time, at) => ({ time, cells: [...NAMES.map((name) => run[name][at] ?? ""), ""] }));
  const evaluations = run.evaluations.map((one) => {
    const figures: Partial<Record<Name, number>> = one;
    const cells = NAMES.map((name) => (OF_EVALUATIONS.includes(name) ? (figures[name] ?? "") : ""));
    return { time: one.timeS, cells: [...cells, one.loss] };
  });
  const rows = [...evaluations, ...points].sort((one, other) => one.time - other.time);
  const heads = [...NAMES.map((name) => POINTS[name]), HELD_OUT];
  return `${[heads, ...rows.map(({ cells }) => cells)].map((cells) => cells.join(",")).join("\r\n")}\r\n`;
}

/**
 * Parses a file: the output of {@link toCsv}, or the JSON of `/v1/series`.
 *
 * @throws Error with a sentence that names the fault of the text.
 */
export function readRun(text: string): Run {
  const run = /^\s*\{/.test(text) ? readJson(text) : readCsv(text);
  run.timeS.forEach((time, at) => {
    if (at > 0 && time < run.timeS[at - 1]!) throw new Error("Its times do not ascend.");
  });
  if (run.timeS.length === 0) throw new Error("It has no points.");
  return run;
}

function readCsv(text: string): Run {
  const [head = "", ...lines] = text
    .replace(/^\uFEFF/, "")
    .trimEnd()
    .split(/\r?\n/);
  if (lines.length > ROWS_MAX) throw new Error(`It has more than ${ROWS_MAX} rows.`);
  const heads = head.split(",").map((name) => name.trim());
  const places = new Map([...Object.values(POINTS), HELD_OUT].map((name) => [name, heads.indexOf(name)]));
  const missing = [...places].find(([, place]) => place === -1);
  if (missing) throw new Error(`It has no column “${missing[0]}”.`);
  const run = emptyRun();
  lines.forEach((line, at) => {
    const cells = line.split(",");
    const cell = (name: string): number | null => {
      const word = cells[places.get(name)!]?.trim();
      if (word === undefined) throw new Error(`Line ${at + 2} has ${cells.length} cells instead of ${heads.length}.`);
      if (word !== "" && !Number.isFinite(Number(word)))
        throw new Error(`Line ${at + 2}: “${short(word)}” is not a number.`);
      return word === "" ? null : Number(word);
    };
    const must = (name: Name): number => {
      const value = cell(POINTS[name]);
      if (value === null) throw new Error(`Line ${at + 2} has nothing under “${POINTS[name]}”.`);
      return value;
    };
    const loss = cell(HELD_OUT);
    if (loss === null) {
      for (const name of NAMES)
        if (name === "trainLoss") run.trainLoss.push(cell(POINTS.trainLoss));
        else run[name].push(must(name));
    } else {
      run.evaluations.push({ timeS: must("timeS"), tokensMerged: must("tokensMerged"), rounds: must("rounds"), loss });
    }
  });
  return run;
}

function readJson(text: string): Run {
  let found: unknown;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("It begins like JSON, but is not valid JSON.");
  }
  const fields = found as Readonly<Record<string, unknown>>;
  const run = emptyRun();
  const length = Array.isArray(fields["timeS"]) ? fields["timeS"].length : 0;
  for (const name of NAMES) {
    const column = fields[name];
    if (!Array.isArray(column)) throw new Error(`It has no list “${name}”.`);
    if (column.length !== length)
      throw new Error(`Its list “${name}” has ${column.length} values instead of ${length}.`);
    const isGood = (value: unknown) => Number.isFinite(value) || (name === "trainLoss" && value === null);
    if (!column.every(isGood)) throw new Error(`Its list “${name}” has values that are not numbers.`);
    run[name] = column;
  }
  if (length > ROWS_MAX) throw new Error(`It has more than ${ROWS_MAX} points.`);
  const evaluations = fields["evaluations"];
  if (!Array.isArray(evaluations) || !evaluations.every(isEvaluation))
    throw new Error("Its list “evaluations” has values that are not measurements.");
  run.evaluations = evaluations;
  return run;
}

function isEvaluation(one: unknown): one is Evaluation {
  const fields = (one ?? {}) as Readonly<Record<string, unknown>>;
  return ["timeS", "tokensMerged", "rounds", "loss"].every((name) => Number.isFinite(fields[name]));
}

function short(word: string): string {
  return word.length > 20 ? `${word.slice(0, 20)}…` : word;
}
