/** Describes the model and its data, in plain words and in technical terms. */
import type { AdapterFacts, ServerStatus } from "./api.js";
import { count } from "./format.js";

/** The syncer's name for its generated text. */
const GRAMMAR = "built-in grammar";

/** Returns "tiny language model on made-up sentences". */
export function modelOf({ params, adapters, corpus }: ServerStatus): string {
  return `${sizeOf(params + (adapters?.frozenParams ?? 0))} language model${textOf(corpus)}`;
}

/** Returns the same in technical terms. */
export function termsOf(status: ServerStatus): string {
  const { params, preset, init, adapters, corpus, tokensMerged } = status;
  const text = corpus === "" ? "" : ` Its text: ${corpus}.`;
  const name = `“${init ?? preset}”`;
  const model = adapters
    ? adaptersOf(params, adapters, name)
    : `The model has ${count(params)} parameters (${name}), the numbers that training adjusts.`;
  const token = status.tokenIsByte ? "a token is a byte here" : "a token is a piece of a word";
  return `${model}${text} ${count(tokensMerged)} tokens are merged into it; ${token}.`;
}

/** Returns the trained parts of the model called `name`, and its frozen parts. */
function adaptersOf(params: number, { rank, targets, frozenParams, frozenForm }: AdapterFacts, name: string): string {
  const all = params + frozenParams;
  const share = ((100 * params) / all).toFixed(params < 0.1 * all ? 2 : 0);
  const trained = `Adapters of the model ${name} are trained (LoRA, rank ${rank} on ${targets})`;
  return `${trained}: ${count(params)} of ${count(all)} parameters, ${share} %. The others stay frozen, as ${frozenForm}.`;
}

/** Returns an adjective for a model's size. */
function sizeOf(params: number): string {
  const sizes = [
    [1e6, "tiny"],
    [2e7, "small"],
    [2e8, "middling"],
  ] as const;
  return sizes.find(([below]) => params < below)?.[1] ?? "large";
}

/** Describes the training data. */
function textOf(corpus: string): string {
  if (corpus === "") return "";
  return corpus === GRAMMAR ? " on made-up sentences" : ` on the text “${corpus}”`;
}
