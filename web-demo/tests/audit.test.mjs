// Goal: what a browser trains is done again by a native syncer, to the bit.
import assert from "node:assert/strict";
import { cp, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, root, serve, startSyncer, until } from "./support.mjs";

let folder, site, syncer, browser;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "archipelago-site-"));
  await cp(join(root, "tests/plain.html"), join(folder, "plain.html"));
  await cp(join(root, "package/dist"), join(folder, "package/dist"), { recursive: true });
  site = await serve(folder);
  const origin = new URL(site.url).origin;
  [syncer, browser] = await Promise.all([
    startSyncer("--allow-origin", origin, "--audit", "1", "--sync-every", "8"),
    launch(chromiumFlagsWithoutGpu),
  ]);
});
after(async () => {
  await Promise.all([syncer?.stop(), browser?.close(), site?.stop()]);
  if (folder) await rm(folder, { recursive: true, force: true });
});

test("a page's learner that agreed passes audits of a native syncer", async () => {
  const page = await browser.newPage();
  page.on("pageerror", (error) => assert.fail(error));
  await page.goto(new URL("plain.html", site.url).href);
  await page.waitForFunction(() => window.join);
  await page.evaluate((url) => {
    window.learner = join(url, { name: "page", audited: true, remember: false });
  }, syncer.url);
  const learner = await until("it to pass", async () => {
    const { learners } = await syncer.status();
    const learner = learners.find((learner) => learner.name === "page");
    assert.equal(learner?.auditFault ?? null, null);
    return learner && learner.auditsPassed >= 3 && learner;
  });
  assert.equal(learner.device, "browser, cpu, audited");
  assert.ok(learner.audited && learner.auditsFailed === 0 && learner.tokensMerged > 0);
  await page.evaluate(() => window.learner.stop());
  await page.close();
});
