// Goal: a tab trains in a LoRA run, and fetches the frozen weights once.
import assert from "node:assert/strict";
import { rename } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, root, startSyncer, until } from "./support.mjs";

const golden = join(root, "../tests/golden/init");

let syncer, plainBrowser, gpuBrowser;

before(async () => {
  const run = ["--init", join(golden, "model"), "--data", join(golden, "text.txt"), "--held-out", "0.3"];
  [syncer, plainBrowser, gpuBrowser] = await Promise.all([
    startSyncer(...run, "--batch", "2", "--sync-every", "4", "--lora-rank", "4"),
    launch(chromiumFlagsWithoutGpu),
    launch(),
  ]);
});
after(() => Promise.all([syncer?.stop(), plainBrowser?.close(), gpuBrowser?.close()]));

/** Opens a page that trains under `name`, and collects its console's complaints. */
async function contribute(context, name, engine) {
  const page = await context.newPage();
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  page.on("console", (message) => message.type() === "error" && trouble.push(message.text()));
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), {
    name,
    engine,
    mode: "all",
  });
  await page.goto(syncer.url);
  await page.click("#start");
  return { page, trouble };
}

const merged = (name, tokens = 0) =>
  until(`tokens of ${name} to be merged`, async () => {
    const { learners } = await syncer.status();
    return learners.find((learner) => learner.name === name && learner.tokensMerged > tokens);
  });

const kept = (page) =>
  page.evaluate(async () => {
    const cache = await caches.open("archipelago-frozen");
    const parts = await Promise.all((await cache.keys()).map((key) => cache.match(key)));
    return Promise.all(parts.map(async (part) => (await part.arrayBuffer()).byteLength));
  });

test("tabs train adapters, on WebAssembly and on WebGPU", async () => {
  const contexts = await Promise.all([plainBrowser.newContext(), gpuBrowser.newContext()]);
  const plain = await contribute(contexts[0], "wasm", "cpu");
  const gpu = await contribute(contexts[1], "webgpu", "gpu");
  await Promise.all([merged("wasm"), merged("webgpu")]);
  const status = await until("the held-out loss to fall", async () => {
    const status = await syncer.status();
    return status.valLossLast < status.valLossFirst && status;
  });
  assert.equal(status.adapters.rank, 4);
  assert.deepEqual(status.fates.refused, {});
  assert.deepEqual([plain.trouble, gpu.trouble], [[], []]);
  await Promise.all(contexts.map((context) => context.close()));
});

test("a page that is loaded anew fetches nothing of what the run builds on", async () => {
  const context = await plainBrowser.newContext();
  const { page } = await contribute(context, "keeper", "cpu");
  const before = await merged("keeper");
  const { adapters } = await syncer.status();
  assert.deepEqual(await kept(page), [adapters.frozenBytes]);
  await page.click("#stop");
  await until("it to stop", async () => /^Stopped/.test(await page.textContent("#sentence")));

  // From now on the weights cannot be fetched.
  const [file, aside] = ["frozen.bin", "aside.bin"].map((name) => join(syncer.folder, name));
  await rename(file, aside);
  await page.reload();
  await page.click("#start");
  const again = await merged("keeper", before.tokensMerged);
  assert.equal(again.learner, before.learner);
  await rename(aside, file);
  await context.close();
});
