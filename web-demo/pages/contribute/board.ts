/** The board: top contributors to the run, by name and by team, unless its owner hides names. */
import type { LearnersPage, LearnerView, ServerStatus } from "../shared/api.js";
import { fillRows, find, make, setAttribute, setText } from "../shared/dom.js";
import { count, legible } from "../shared/format.js";
import { nameOf } from "../shared/names.js";

/** Rows of each list. */
const ROWS_MAX = 8;

/** One row. */
export interface Place {
  readonly name: string;
  readonly tokens: number;
  /** Share of all merged tokens, 0 to 1. */
  readonly share: number;
  readonly own: boolean;
}

/** Returns the team, the part after the last `@` of a name, or an empty string. */
export function teamOf(name: string): string {
  const at = name.lastIndexOf("@");
  return at < 0 ? "" : name.slice(at + 1).trim();
}

/** Returns the top `learners`; `own` is this page's learner. */
export function people(learners: readonly LearnerView[], own: number | null): Place[] {
  const places = learners.map((learner) => ({
    name: nameOf(learner),
    tokens: learner.tokensMerged,
    share: learner.mergedShare,
    own: learner.learner === own,
  }));
  return foremost(places);
}

/** Returns the top teams; capitals make no difference in names. */
export function teams(learners: readonly LearnerView[], own: number | null): Place[] {
  const found = new Map<string, Place>();
  for (const learner of learners) {
    const name = teamOf(learner.name);
    if (name === "") continue;
    const key = name.toLowerCase();
    const before = found.get(key) ?? { name, tokens: 0, share: 0, own: false };
    found.set(key, {
      name: before.name,
      tokens: before.tokens + learner.tokensMerged,
      share: before.share + learner.mergedShare,
      own: before.own || learner.learner === own,
    });
  }
  return foremost([...found.values()]);
}

function foremost(places: readonly Place[]): Place[] {
  const merged = places.filter((place) => place.tokens > 0).sort((a, b) => b.tokens - a.tokens);
  return merged.slice(0, ROWS_MAX);
}

/** Time between two updates, in milliseconds: one takes tens of kilobytes, and links may be slow. */
const LOOK_MS = 60_000;

let lookedMs = -LOOK_MS;

/** Updates the board if it is due; `own` is this page's learner. */
export async function showBoard(status: ServerStatus, own: number | null): Promise<void> {
  find("name-field", HTMLElement).hidden = status.namesHidden;
  if (performance.now() - lookedMs < LOOK_MS) return;
  lookedMs = performance.now();
  if (status.namesHidden) return write([], []);
  // Uses the list of all learners: the status puts connected ones first.
  const answer = await fetch("./v1/learners?sort=merged&limit=100");
  if (!answer.ok) return;
  const { learners } = (await answer.json()) as LearnersPage;
  write(people(learners, own), teams(learners, own));
}

function write(names: readonly Place[], groups: readonly Place[]): void {
  find("board", HTMLElement).hidden = names.length === 0;
  find("board-teams", HTMLElement).hidden = groups.length === 0;
  fill("board-people-rows", names);
  fill("board-teams-rows", groups);
}

function fill(id: string, places: readonly Place[]): void {
  fillRows(find(id, HTMLElement), places, blank, (row, place) => {
    const [name, tokens, share] = row.children;
    if (!name || !tokens || !share) return;
    setText(name.firstElementChild ?? name, legible(place.name));
    setText(name.lastElementChild ?? name, place.own ? " (this machine)" : "");
    setText(tokens, count(place.tokens));
    setText(share, `${(100 * place.share).toFixed(1)} %`);
    setAttribute(row, "data-own", place.own ? "" : null);
  });
}

function blank(): HTMLElement {
  // Isolates the direction of a name, so that it does not reverse the text around it.
  const name = make("th", { scope: "row" }, make("bdi"), make("span"));
  return make("tr", {}, name, make("td", { class: "right" }), make("td", { class: "right" }));
}
