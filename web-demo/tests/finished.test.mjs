// Goal: after the run's end a phone that lent itself still shows its part, the last text and the model.
import assert from "node:assert/strict";
import { test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, startSyncer, until } from "./support.mjs";

test("after Finish a phone shows its part and the model, and offers no start, also after a reload", async (context) => {
  const [syncer, browser] = await Promise.all([startSyncer(), launch(chromiumFlagsWithoutGpu)]);
  context.after(() => Promise.all([syncer.stop(), browser.close()]));
  const page = await browser.newPage({ viewport: { width: 360, height: 740 } });
  const says = (selector, pattern) =>
    until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
  await page.goto(syncer.url);
  await page.click("#start");
  await says("#part", /of what this model has learnt came from this machine/);
  const authorization = `Bearer ${await syncer.token()}`;
  const finish = () => fetch(new URL("v1/admin/finish", syncer.url), { method: "POST", headers: { authorization } });
  assert.equal((await finish()).status, 202);
  for (const again of [false, true]) {
    if (again) await page.reload();
    await says("#sentence", /^The run is complete/);
    await until("the model to take home", () => page.isVisible("#take-home a"));
    await says("#about", /^This run has trained a tiny language model/);
    await says("#thanks-text", /% of what this model has learnt came from this machine/);
    await says("#sample", /\S{3}/);
    for (const gone of ["#start", "#modes", "#qr", "#rules"]) assert.ok(!(await page.isVisible(gone)), gone);
    assert.ok(await page.isVisible("#talk-go"));
  }
  const download = await fetch(new URL(await page.getAttribute("#take-home a", "href"), syncer.url));
  assert.equal(download.headers.get("content-type"), "application/zip");
  await download.body.cancel();
  assert.equal((await finish()).status, 409);
});
