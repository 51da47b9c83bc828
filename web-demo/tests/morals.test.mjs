// Goal: each chapter's default answer is what its run shows with any seed: a moral of one seed alone is no moral.
//
// One seed for each chapter takes some seconds; `cargo xtask test --only morals --seeds 1..21` tests 20. Nine of ten must
// agree.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { before, test } from "node:test";
import { ANSWERS } from "./answers.mjs";
import { load, root } from "./support.mjs";

const ASKED = process.env.ARCHIPELAGO_TEST_SEEDS;
const [FROM, UNTIL] = (ASKED ?? "1..3").split("..").map(Number);
const SEEDS = UNTIL - FROM;
/** One seed of ten may differ. */
const AGREE = 0.9;
/** Interval of frames, in virtual milliseconds. */
const FRAME_MS = 100;
/** Limit for a chapter, in virtual milliseconds. */
const CHAPTER_MS_MAX = 180_000;
/** Chapters whose finding includes lock-step; others skip that run, which costs as much as their own. */
const TWINNED = new Set(["lockstep", "far"]);

let CHAPTERS, Inquiry, Live, settled, wasm;

before(async () => {
  ({ CHAPTERS } = await load("teach/guide/chapters/index.ts"));
  ({ Inquiry } = await load("teach/guide/inquiry.ts"));
  ({ Live } = await load("teach/live.ts"));
  ({ settled } = await load("teach/run/knobs.ts"));
  wasm = await import(join(root, "lesson/dist/lesson.js"));
  await wasm.default({ module_or_path: await readFile(join(root, "lesson/dist/lesson_bg.wasm")) });
});

/** A run and its twin, reported to `inquiry`. */
class Run {
  constructor(inquiry, spec, actions) {
    this.actions = [...actions];
    this.nowMs = 0;
    this.sims = [new wasm.Lesson(spec)];
    if (TWINNED.has(inquiry.chapter.id)) this.sims.push(new wasm.Twin(spec));
    for (const action of actions) for (const sim of this.sims) sim.act(action);
    this.live = new Live(spec);
    this.inquiry = inquiry;
    inquiry.began({ spec, actions: this.actions, changes: [] });
  }

  act(todo) {
    const action = { factor: 1, ...todo, atMs: this.nowMs + 1 };
    this.actions.push(action);
    for (const sim of this.sims) sim.act(action);
    this.inquiry.acted(action);
  }

  advance() {
    this.nowMs += FRAME_MS;
    for (const sim of this.sims) sim.advance(this.nowMs);
    const [frame, twin] = this.sims.map((sim) => sim.frame());
    if (twin) {
      this.live.takeTwin(twin);
      this.inquiry.takeTwin(twin);
    }
    this.live.take(frame, this.actions);
    this.inquiry.take(frame, this.live);
  }

  free() {
    for (const sim of this.sims) sim.free();
  }
}

/** Returns a chapter's finding with this seed. */
function findingOf(chapter, seed) {
  const spec = settled({ ...wasm.lessonDefaults(), ...chapter.stage, seed });
  const actions = chapter.actions ?? [];
  const inquiry = new Inquiry(chapter, { spec, actions });
  let run = new Run(inquiry, spec, actions);
  for (let ms = 0; ms < CHAPTER_MS_MAX; ms += FRAME_MS) {
    run.advance();
    if (inquiry.phase.phase === "before" && inquiry.isWarm) {
      if (chapter.break.kind === "deeds") for (const todo of chapter.break.deeds) run.act(todo);
      else {
        const { heldOut } = run.live;
        inquiry.changing(heldOut);
        run.free();
        run = new Run(inquiry, settled({ ...spec, ...chapter.break.change }), actions);
      }
    }
    if (inquiry.phase.phase !== "found") continue;
    run.free();
    return inquiry.phase.finding;
  }
  return assert.fail(`${chapter.id} with seed ${seed} finds nothing in ${CHAPTER_MS_MAX} ms: ${inquiry.phase.phase}`);
}

for (const [id, answer] of Object.entries(ANSWERS)) {
  test(`the moral of chapter ${id} holds`, () => {
    const chapter = CHAPTERS.find((one) => one.id === id);
    const found = Array.from({ length: SEEDS }, (_, at) => findingOf(chapter, FROM + at));
    const agree = found.filter((one) => one.answer === answer).length;
    const said = found.map((one) => `${one.answer}: ${one.text}`).join("\n");
    assert.ok(agree >= AGREE * SEEDS, `${agree} of ${SEEDS} seeds answer ${answer}\n${said}`);
    if (ASKED) console.log(`${id}: ${agree} of ${SEEDS}\n${said}`);
  });
}

test("every chapter has an answer here", () => {
  assert.deepEqual(
    Object.keys(ANSWERS),
    CHAPTERS.map((chapter) => chapter.id),
  );
});
