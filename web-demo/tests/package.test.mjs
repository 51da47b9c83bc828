// Goal: the npm package works in a page without a bundler, in an app built by Vite, and in Firefox.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { build } from "vite";
import { chromiumFlagsWithoutGpu, launch, root, serve, startSyncer, until } from "./support.mjs";

let folder, site, syncer, browser;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "archipelago-site-"));
  await cp(join(root, "tests/plain.html"), join(folder, "plain.html"));
  await cp(join(root, "package/dist"), join(folder, "package/dist"), { recursive: true });
  await build({ root: join(root, "tests/app"), base: "./", logLevel: "warn", build: { outDir: join(folder, "app") } });
  site = await serve(folder);
  const origin = new URL(site.url).origin;
  [syncer, browser] = await Promise.all([startSyncer("--allow-origin", origin), launch(chromiumFlagsWithoutGpu)]);
});
after(async () => {
  await Promise.all([syncer?.stop(), browser?.close(), site?.stop()]);
  if (folder) await rm(folder, { recursive: true, force: true });
});

const merged = (name) =>
  until(`tokens of ${name} to be merged`, async () => {
    const { learners } = await syncer.status();
    return learners.find((learner) => learner.name === name && learner.tokensMerged > 0);
  });

/** Opens one of the two pages; any complaint in its console fails the test. */
async function open(path) {
  const page = await browser.newPage();
  page.on("pageerror", (error) => assert.fail(error));
  await page.goto(new URL(path, site.url).href);
  await page.waitForFunction(() => window.join);
  return page;
}

for (const [kind, path] of [
  ["plain", "plain.html"],
  ["vite", "app/index.html"],
]) {
  test(`a page trains with the package: ${kind}`, async () => {
    const page = await open(path);
    assert.equal(page.workers().length, 0, "nothing starts on import");
    await page.evaluate(
      ([url, name]) => {
        window.stop = new AbortController();
        window.heard = [];
        window.learner = join(url, { name, engine: "cpu", remember: false, signal: window.stop.signal });
        window.off = window.learner.on("progress", (report) => window.heard.push(report.steps));
      },
      [syncer.url, kind],
    );
    await merged(kind);
    const heard = () => page.evaluate(() => window.heard.length);
    assert.ok((await heard()) > 0);
    const text = await page.evaluate(async () => (await Array.fromAsync(window.learner.generate("The "))).join(""));
    assert.ok(text.length > 50, `the learner's model writes: ${text}`);
    await page.evaluate(() => window.off());
    const then = await heard();
    await page.waitForTimeout(1_200);
    assert.equal(await heard(), then, "a listener that is taken off hears nothing more");
    const report = await page.evaluate(() => {
      window.stop.abort();
      return window.learner.done;
    });
    assert.ok(report.tokensTrained > 0 && report.steps > 0);
    await until("its Worker to be gone", async () => page.workers().length === 0);
    await page.close();
  });
}

test("the address of code and Worker may be given", async () => {
  const page = await open("app/index.html");
  await page.evaluate(
    ([url, site]) => {
      window.learner = join(url, {
        name: "explicit",
        engine: "cpu",
        remember: false,
        workerUrl: new URL("package/dist/worker.js", site),
        wasmUrl: new URL("package/dist/wasm/", site),
      });
    },
    [syncer.url, site.url],
  );
  await merged("explicit");
  await page.evaluate(() => window.learner.stop());
  await page.close();
});

test("errors have codes", async () => {
  const page = await open("plain.html");
  const failure = (address, options) =>
    page.evaluate(
      ([address, options]) =>
        join(address, { remember: false, engine: "cpu", ...options }).done.then(
          () => "no error",
          (error) => [error instanceof LearnerError, error.code, error.message],
        ),
      [address, options],
    );
  const check = async (address, options, code, words) => {
    const [ours, found, message] = await failure(address, options);
    assert.deepEqual([ours, found], [true, code], message);
    assert.match(message, words);
  };
  await check("ftp://a:1", {}, "options", /ftp:\/\/ does not lead to a syncer/);
  await check(syncer.url, { share: 7 }, "options", /duty cycle of 7/);
  await check(syncer.url, { engine: "abacus" }, "options", /abacus/);
  await check(syncer.url, { batch: 4_097 }, "options", /"4097" is invalid.*1 to 4096 windows/);
  await check(
    "http://127.0.0.1:9/",
    { contactMsMax: 300 },
    "unreachable",
    /did not admit this learner.*--allow-origin http:/,
  );
  await check(syncer.url, { wasmUrl: new URL("nowhere/", site.url).href }, "load", /could not be loaded/);
  await check(syncer.url, { workerUrl: new URL("nowhere.js", site.url).href }, "load", /could not be loaded/);
  await check(syncer.url, { engine: "gpu" }, "gpu", /offers no GPU: enable WebGPU/);
  const elsewhere = await page.evaluate((url) => {
    try {
      return join(url, { workerUrl: "http://127.0.0.2:1/worker.js" });
    } catch (error) {
      return [error instanceof LearnerError, error.code, error.message];
    }
  }, syncer.url);
  assert.deepEqual(elsewhere.slice(0, 2), [true, "load"]);
  assert.match(elsewhere[2], /must be of the page's own origin/);
  await page.close();
});

test("what this browser has and does is told", async () => {
  const page = await open("plain.html");
  const found = await page.evaluate(() => window.capabilities());
  assert.deepEqual([found.simd, found.relaxedSimd, found.engine], [true, true, "cpu"]);
  assert.match(found.reason, /WebGPU/);
  const measured = await page.evaluate(() => measure({ engine: "cpu", preset: "tiny", trainMs: 300 }));
  assert.equal(measured.params, 117_056);
  assert.ok(measured.tokensPerS > 0 && measured.steps > 0 && measured.loss > 0, JSON.stringify(measured));
  assert.deepEqual(
    measured.presets.map(({ name }) => name),
    ["tiny", "small", "medium", "base", "llama-135m", "llama-360m"],
  );
  const given_up = await page.evaluate(() => {
    const controller = new AbortController();
    const measuring = measure({ engine: "cpu", preset: "base", trainMs: 1e6, signal: controller.signal });
    controller.abort();
    return measuring.catch((error) => error.code);
  });
  assert.equal(given_up, "aborted");
  await page.close();
});

// If Firefox is installed it must train; Debian's package is firefox-esr.
const firefox = process.env.FIREFOX ?? "/usr/bin/firefox-esr";
test("Firefox trains with WebAssembly", {
  skip: process.env.ARCHIPELAGO_TEST_FIREFOX === "no" && "--without firefox",
}, async () => {
  const profile = await mkdtemp(join(tmpdir(), "archipelago-firefox-"));
  const address = new URL(`plain.html?name=firefox&syncer=${encodeURIComponent(syncer.url)}`, site.url).href;
  const child = spawn(firefox, ["--headless", "--no-remote", "--profile", profile, address], {
    stdio: "ignore",
    detached: true,
  });
  const failed = new Promise((_, failed) =>
    child.on("error", (error) =>
      failed(new Error(`${error}; install firefox-esr, or skip this test with --without firefox`)),
    ),
  );
  try {
    const learner = await Promise.race([merged("firefox"), failed]);
    assert.match(learner.device, /cpu/);
  } finally {
    if (child.pid) process.kill(-child.pid, "SIGKILL");
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
});
