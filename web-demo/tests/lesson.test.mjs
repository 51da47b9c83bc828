// A lesson in Chromium gives the same bits as natively: `tests/golden/lesson.json` is written and checked by
// `cargo test -p archipelago lesson`.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, root, serve } from "./support.mjs";

const golden = JSON.parse(await readFile(new URL("../../tests/golden/lesson.json", import.meta.url), "utf8"));

test("one seed and one list of actions have one digest, training included", async (t) => {
  const site = await serve(join(root, "lesson/dist"));
  const browser = await launch(chromiumFlagsWithoutGpu);
  t.after(() => browser.close().then(site.stop));
  const page = await browser.newPage();
  // Any document of the site's origin works.
  await page.goto(new URL("lesson.js", site.url).href);
  const digests = await page.evaluate(async ({ spec, actions, until_ms }) => {
    const module = await import("/lesson.js");
    await module.default({ module_or_path: "/lesson_bg.wasm" });
    return [module.Lesson, module.Twin].map((Kind) => {
      const told = new Kind(spec);
      for (const action of actions) told.act(action);
      told.advance(until_ms);
      const digest = told.digest();
      told.free();
      return digest;
    });
  }, golden);
  assert.deepEqual(digests, [golden.lesson, golden.twin]);
});

test("what makes no sense is an error with a code, and nothing breaks", async (t) => {
  const site = await serve(join(root, "lesson/dist"));
  const browser = await launch(chromiumFlagsWithoutGpu);
  t.after(() => browser.close().then(site.stop));
  const page = await browser.newPage();
  await page.goto(new URL("lesson.js", site.url).href);
  const told = await page.evaluate(async (spec) => {
    const module = await import("/lesson.js");
    await module.default({ module_or_path: "/lesson_bg.wasm" });
    const lesson = new module.Lesson(spec);
    const tries = [
      () => new module.Lesson({ ...spec, islands: 9 }),
      () => new module.Twin({ seed: 1 }),
      () => lesson.act({ atMs: 0, island: 7, deed: "kill", factor: 1 }),
      () => lesson.act({ atMs: 0, island: 0, deed: "tickle", factor: 1 }),
      () => module.goodput({ chips: 0, mtbiYears: 1, learners: 1, elastic: true, seed: 1 }),
      () => module.linkGbitPerS({}),
    ];
    const codes = tries.map((attempt) => {
      try {
        attempt();
        return "nothing";
      } catch (error) {
        return error.code;
      }
    });
    lesson.advance(Number.NaN);
    lesson.advance(500);
    return { codes, nowMs: lesson.frame().nowMs };
  }, golden.spec);
  assert.deepEqual(told.codes, Array(6).fill("options"));
  assert.equal(told.nowMs, 500);
});
