// Goal: helpers change only the speed of a learner on the CPU; a broken helper costs only time.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, root, serve } from "./support.mjs";

let browser, server;

before(async () => {
  [browser, server] = await Promise.all([launch(chromiumFlagsWithoutGpu), serve(join(root, "package"))]);
});
after(() => Promise.all([browser?.close(), server?.stop()]));

/** Runs two steps with this many workers, in a page that may load only `modules` WebAssembly modules. */
async function train(workers, modules = workers) {
  const context = await browser.newContext();
  let loaded = 0;
  await context.route("**/*.wasm", (route) => (++loaded > modules ? route.abort() : route.continue()));
  const page = await context.newPage();
  await context.route("**/page", (route) => route.fulfill({ contentType: "text/html", body: "<!doctype html>" }));
  await page.goto(`${server.url}page`);
  const measured = await page.evaluate(async (workers) => {
    const { measure } = await import("/dist/index.js");
    return measure({ engine: "cpu", preset: "tiny", workers, trainMs: 1 });
  }, workers);
  await context.close();
  assert.equal(loaded, workers, "each worker loads the engine once");
  assert.equal(measured.steps, 1, "the loss is that after one step");
  return measured;
}

test("any number of workers finds the same loss", async () => {
  const alone = await train(1);
  assert.match(alone.device, /^cpu (simd128|relaxed-simd) 1 thread$/);
  for (const workers of [2, 3]) {
    const together = await train(workers);
    assert.match(together.device, new RegExp(`^cpu (simd128|relaxed-simd) ${workers} workers$`));
    assert.ok(Math.abs(together.loss - alone.loss) < 1e-4, `${together.loss} with ${workers}, ${alone.loss} alone`);
  }
});

test("a helper that cannot load its engine is done without", async () => {
  const [alone, left] = [await train(1), await train(2, 1)];
  assert.match(left.device, /1 thread$/);
  assert.ok(Math.abs(left.loss - alone.loss) < 1e-4, `${left.loss} without it, ${alone.loss} alone`);
});
