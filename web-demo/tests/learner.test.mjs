// Goal: learners in real browsers and a native one train one model, and survive the behaviour of browsers.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, relay, startLearner, startSyncer, until } from "./support.mjs";

let syncer, gpuBrowser, plainBrowser;

before(async () => {
  [syncer, gpuBrowser, plainBrowser] = await Promise.all([
    startSyncer("--total-tokens", "2000000"),
    launch(),
    launch(chromiumFlagsWithoutGpu),
  ]);
});
after(() => Promise.all([syncer?.stop(), gpuBrowser?.close(), plainBrowser?.close()]));

/** The newest page of each name. */
const pages = new Map();

/** Opens a page that trains under `name`. `trouble` collects the console's complaints. */
async function contribute(context, name, engine = "auto", settings = {}, url = syncer.url) {
  const page = await context.newPage();
  pages.set(name, page);
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  page.on("console", (message) => message.type() === "error" && trouble.push(message.text()));
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), {
    name,
    engine,
    mode: "all",
    ...settings,
  });
  await page.goto(url);
  await page.click("#start");
  return { page, trouble };
}

async function learner(name) {
  const { learners } = await syncer.status();
  return learners.filter((learner) => learner.name === name);
}

/** The run's log, newest line first. */
async function log() {
  const { entries } = await (await fetch(new URL("v1/log", syncer.url))).json();
  return entries.map(({ text }) => text);
}

const sentence = (page) => page.textContent("#sentence");
const merged = (name, tokens = 0) =>
  until(
    `tokens of ${name} to be merged`,
    async () => (await learner(name)).find((learner) => learner.tokensMerged > tokens),
    async () => {
      const page = await pages.get(name)?.textContent("#sentence").catch(String);
      return JSON.stringify({ page, status: await syncer.status() });
    },
  );

test("WebGPU, WebAssembly and native learners are merged into one model", async (t) => {
  const native = startLearner(syncer.url, "native", 0.2);
  // Here too: a running child process would keep this file from ending.
  t.after(native.stop);
  const gpuContext = await gpuBrowser.newContext();
  const plainContext = await plainBrowser.newContext();
  const gpu = await contribute(gpuContext, "webgpu", "gpu");
  const plain = await contribute(plainContext, "wasm", "auto", { mode: "gentle" });
  const [onGpu, onCpu] = await Promise.all([merged("webgpu"), merged("wasm"), merged("native")]);
  assert.match(onGpu.device, /WebGPU/);
  assert.match(onCpu.device, /cpu/);
  const status = await until("the held-out loss to fall with three of them", async () => {
    const status = await syncer.status();
    return status.valLossLast < status.valLossFirst - 0.5 && status.live === 3 && status;
  });
  assert.deepEqual(status.fates.refused, {});
  assert.deepEqual([gpu.trouble, plain.trouble], [[], []]);
  await native.stop();

  // Stop is graceful: when the page reports it, the Worker has ended and the syncer knows the reason.
  await gpu.page.click("#stop");
  await until("the page to say that it stopped", async () => /^Stopped/.test(await sentence(gpu.page)));
  await until("its Worker to be gone", async () => gpu.page.workers().length === 0);
  await until("the syncer to know", async () => (await learner("webgpu"))[0].state === null);
  await until("the log to say that it left", async () => (await log()).includes("webgpu left."));
  // Its last update is merged a round later, and may cover more training than its last report.
  await gpu.page.waitForTimeout(2_000);
  const [{ tokensTrained }] = await learner("webgpu");
  await gpu.page.waitForTimeout(1_500);
  assert.equal((await learner("webgpu"))[0].tokensTrained, tokensTrained);
  // The browser ends a closed tab gracefully too.
  await Promise.all([gpuContext.close(), plainContext.close()]);
  await until("the log to say that the other left", async () => (await log()).includes("wasm left."));
  assert.ok(!(await log()).some((text) => /broke/.test(text)));
});

test("a device that is lost is opened anew, and training goes on", async () => {
  const context = await gpuBrowser.newContext();
  // A page cannot remove a GPU: the engine's Worker is told to give up its own.
  await context.addInitScript(() => {
    const Plain = window.Worker;
    window.started = [];
    window.Worker = class extends Plain {
      constructor(...given) {
        super(...given);
        window.started.push(this);
      }
    };
  });
  const { page } = await contribute(context, "unlucky", "gpu");
  const loseDevice = () =>
    page.evaluate(() => window.started.forEach((worker) => worker.postMessage({ do: "loseDevice" })));
  const before = await merged("unlucky");
  await loseDevice();
  await until("the page to tell of it", async () => /lost/.test(await page.textContent("#error")));
  const after = await merged("unlucky", before.tokensMerged);
  assert.equal(after.learner, before.learner, "it is the same learner");
  assert.equal((await learner("unlucky")).length, 1);
  await context.close();
});

test("a page that is loaded anew goes on as the same learner, with its optimiser", async () => {
  const context = await plainBrowser.newContext();
  const { page } = await contribute(context, "loyal", "cpu", { resume: true });
  const before = await merged("loyal");
  await until("the moments to be kept", () => page.evaluate(hasMoments));
  await page.reload();
  // The page was set to continue by itself.
  await until("it to go on with what was kept", async () => /kept/.test(await page.textContent("#device")));
  const after = await merged("loyal", before.tokensMerged);
  assert.equal(after.learner, before.learner);
  // The syncer may have merged the old page's update, and so welcome the new page only now.
  const shown = async () => Number(await page.getAttribute("#merged", "data-tokens")) >= before.tokensMerged;
  await until("nothing that was merged to be forgotten", shown);
  await context.close();
});

test("of two tabs of one browser one trains, and the other takes over", async () => {
  const context = await plainBrowser.newContext();
  const first = await contribute(context, "twins", "cpu");
  await merged("twins");
  const second = await contribute(context, "twins", "cpu");
  await until("the second to wait", async () => /another tab/.test(await sentence(second.page)));
  assert.equal((await learner("twins")).length, 1, "they are one learner");
  const [{ tokensMerged }] = await learner("twins");
  await first.page.close();
  const told = () => sentence(second.page);
  await until("the second to train", async () => /^Training/.test(await told()), told);
  await merged("twins", tokensMerged);
  await context.close();
});

test("rules pause and end training", async () => {
  const context = await plainBrowser.newContext();
  const { page } = await contribute(context, "ruled", "cpu");
  await merged("ruled");
  await page.click("#pause");
  await until("the pause to be told", async () => /^Paused by you/.test(await sentence(page)));
  await until("the syncer to know", async () => (await learner("ruled"))[0].state === "paused");
  const [{ tokensTrained }] = await learner("ruled");
  await page.waitForTimeout(1_000);
  assert.equal((await learner("ruled"))[0].tokensTrained, tokensTrained, "nothing is trained in a pause");
  await page.click("#pause");
  await merged("ruled", (await learner("ruled"))[0].tokensMerged);
  await page.fill("[name=megabytes]", "0.01");
  await page.dispatchEvent("[name=megabytes]", "change");
  await until("the cap to end it", async () => /data cap/.test(await sentence(page)));
  await until("its Worker to be gone", async () => page.workers().length === 0);
  await context.close();
});

test("a hidden page trains on, and the syncer knows that it is hidden", async () => {
  const context = await plainBrowser.newContext();
  const { page } = await contribute(context, "shy", "cpu");
  const before = await merged("shy");
  const hide = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  await hide(true);
  await until("the syncer to know", async () => (await learner("shy"))[0].state === "hidden");
  await merged("shy", before.tokensMerged);
  await page.check("[name=restHidden]");
  await until("the rule to be told", async () => /page is hidden/.test(await sentence(page)));
  await until("the syncer to know of the rest", async () => (await learner("shy"))[0].state === "paused");
  await hide(false);
  await until("it to train again", async () => (await learner("shy"))[0].state === "training");
  await context.close();
});

test("a page that was frozen goes on as the same learner", async () => {
  const context = await plainBrowser.newContext();
  const { page } = await contribute(context, "sleeper", "cpu");
  const before = await merged("sleeper");
  const devtools = await context.newCDPSession(page);
  await devtools.send("Page.setWebLifecycleState", { state: "frozen" });
  await page.waitForTimeout(2_000);
  await devtools.send("Page.setWebLifecycleState", { state: "active" });
  const { tokensMerged } = (await learner("sleeper"))[0];
  const after = await merged("sleeper", tokensMerged);
  assert.equal(after.learner, before.learner);
  assert.equal((await learner("sleeper")).length, 1);
  await context.close();
});

test("a network that goes away is said, training goes on, and nothing is counted twice", async () => {
  const network = await relay(syncer.url);
  const context = await plainBrowser.newContext();
  // At full speed a fast machine would use up its leases before the check.
  const { page } = await contribute(context, "wanderer", "cpu", { mode: "gentle" }, network.url);
  const before = await merged("wanderer");
  network.cut();
  await until("the page to say so", async () => /Not connected \(.+\), trying again/.test(await sentence(page)));
  await until("the syncer to miss it", async () => (await learner("wanderer"))[0].state === null);
  const lossText = () => page.textContent("#loss");
  const loss = await lossText();
  await until("the loss to move all the same", async () => (await lossText()) !== loss);
  network.mend();
  await until("it to be back", async () => /^Training, gentle\.$/.test(await sentence(page)));
  const after = await merged("wanderer", before.tokensMerged);
  assert.equal(after.learner, before.learner);
  assert.equal((await learner("wanderer")).length, 1);
  assert.ok(after.tokensMerged <= after.tokensTrained, JSON.stringify(after));
  await context.close();
  await network.stop();
});

function hasMoments() {
  return new Promise((resolve) => {
    const opening = indexedDB.open("archipelago", 1);
    opening.onerror = () => resolve(false);
    opening.onsuccess = () => {
      const db = opening.result;
      const asked = db.transaction("learners").objectStore("learners").getAll();
      asked.onsuccess = () => {
        db.close();
        resolve(asked.result.some((kept) => kept.moments));
      };
    };
  });
}
