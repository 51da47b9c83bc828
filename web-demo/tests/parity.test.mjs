// The parity tests of the GPU engine on Chromium's WebGPU; `cargo xtask web --parity` builds them.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, serve } from "./support.mjs";

const SOURCES = new URL("../../sdk/runtime/src/engine/gpu/parity/", import.meta.url);

/** What runs natively alone, see `parity/mod.rs`. */
const NATIVE = ["memory.rs"];

/** The names that the sources register, natively too: the module must have them all. */
function registered() {
  const files = readdirSync(SOURCES).filter((file) => !NATIVE.includes(file));
  return files.flatMap((file) => {
    const lists = readFileSync(new URL(file, SOURCES), "utf8").matchAll(/^parity!\(([^)]*)\);$/gm);
    const names = [...lists].flatMap(([, list]) => list.match(/\w+/g));
    return names.map((name) => `archipelago_runtime::engine::gpu::parity::${file.replace(".rs", "")}::${name}`);
  });
}

test("kernels agree with their twins in Chromium", async (t) => {
  const site = await serve(fileURLToPath(new URL(".", import.meta.url)));
  const browser = await launch();
  t.after(() => browser.close().then(site.stop));
  const page = await browser.newPage();
  await page.goto(new URL("parity.html", site.url).href);
  const names = await page.evaluate(() => window.parity.start());
  assert.deepEqual(names.toSorted(), registered().toSorted(), "run `cargo xtask web --parity`");
  for (const [index, name] of names.entries()) {
    await t.test(name, () => page.evaluate((index) => window.parity.run(index), index));
  }
});
