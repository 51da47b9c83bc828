// The parity tests of the GPU engine on Chromium's WebGPU; `cargo xtask web --parity` builds them.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { launch, serve } from "./support.mjs";

const SOURCES = new URL("../../sdk/runtime/src/engine/gpu/parity/", import.meta.url);

/** Files and tests that run only natively; `parity/mod.rs` and the tests give the reasons. */
const NATIVE = ["memory.rs"];
const NATIVE_TEST = /#\[cfg\(not\(target_arch = "wasm32"\)\)\]\s*\w+/g;

/** Returns the names that the sources register natively too: the module must have them all. */
function registered() {
  const files = readdirSync(SOURCES).filter((file) => !NATIVE.includes(file));
  return files.flatMap((file) => {
    const lists = readFileSync(new URL(file, SOURCES), "utf8").matchAll(/^parity!\(([^;]*)\);$/gm);
    const names = [...lists].flatMap(([, list]) => list.replaceAll(NATIVE_TEST, "").match(/\w+/g));
    return names.map((name) => `archipelago_runtime::engine::gpu::parity::${file.replace(".rs", "")}::${name}`);
  });
}

/** A test mostly uses one browser thread that compiles shaders, so there are two browsers. */
const BROWSERS = 2;

test("kernels agree with their twins in Chromium", { concurrency: BROWSERS }, async (t) => {
  const site = await serve(fileURLToPath(new URL(".", import.meta.url)));
  const browsers = await Promise.all(Array.from({ length: BROWSERS }, () => launch()));
  t.after(() => Promise.all(browsers.map((browser) => browser.close())).then(site.stop));
  const open = async (browser) => {
    const page = await browser.newPage();
    await page.goto(new URL("parity.html", site.url).href);
    const names = await page.evaluate(() => window.parity.start());
    assert.deepEqual(names.toSorted(), registered().toSorted(), "run `cargo xtask web --parity`");
    return { page, names };
  };
  const idle = await Promise.all(browsers.map(open));
  const { names } = idle[0];
  const run = async (index) => {
    const one = idle.pop();
    await one.page.evaluate((index) => window.parity.run(index), index).finally(() => idle.push(one));
  };
  await Promise.all(names.map((name, index) => t.test(name, () => run(index))));
});
