// Goal: the pages in the package's README work unchanged, with the package as npm delivers it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, lstat, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { build, createServer } from "vite";
import { chromiumFlagsWithoutGpu, launch, root, serve, startSyncer, until } from "./support.mjs";

const run = promisify(execFile);
/** The React example's npm dependencies besides the package. */
const DEPENDENCIES = ["react", "react-dom", "@types/react", "@types/react-dom", "csstype", "scheduler", "vite"];

let folder, site, syncer, browser;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "archipelago-examples-"));
  const { stdout } = await run("npm", ["pack", "--json", "--pack-destination", folder], {
    cwd: join(root, "package"),
    maxBuffer: 16 << 20,
  });
  const told = JSON.parse(stdout);
  // Some versions of npm report a list, others an object keyed by the package's name.
  const [{ filename }] = Object.values(told);
  await run("tar", ["-xzf", join(folder, filename.replace("/", "-").replace("@", "")), "-C", folder]);
  await cp(join(root, "examples/plain"), join(folder, "site/plain"), { recursive: true });
  await cp(join(folder, "package"), join(folder, "site/plain/archipelago"), { recursive: true });
  site = await serve(join(folder, "site"));
  const origin = new URL(site.url).origin;
  [syncer, browser] = await Promise.all([startSyncer("--allow-origin", origin), launch(chromiumFlagsWithoutGpu)]);
});
after(async () => {
  await Promise.all([syncer?.stop(), browser?.close(), site?.stop()]);
  if (folder) await rm(folder, { recursive: true, force: true });
});

/** Returns the README's first code block in that language that contains `part`. */
async function shown(language, part) {
  const text = await readFile(join(root, "package/README.md"), "utf8");
  const blocks = [...text.matchAll(/^```(\w+)\n(.*?)^```$/gms)];
  return blocks.find(([, kind, code]) => kind === language && code.includes(part))?.[2];
}

test("the README shows the examples as they are", async () => {
  const example = (path) => readFile(join(root, "examples", path), "utf8");
  assert.equal(await shown("html", "<!doctype html>"), await example("plain/index.html"));
  assert.equal(await shown("tsx", "useLearner"), await example("react/lend.tsx"));
});

/** Lends this browser through the page at `path`, until an update is merged, and stops. */
async function lend(path, name) {
  const page = await browser.newPage();
  page.on("pageerror", (error) => assert.fail(error));
  await page.goto(new URL(`${path}?syncer=${encodeURIComponent(syncer.url)}`, site.url).href);
  assert.equal(await page.textContent("[role=status]"), "Nothing computes.");
  assert.equal(page.workers().length, 0);
  await page.click("button");
  await until("its tokens to be merged", async () =>
    (await syncer.status()).learners.some((learner) => learner.name === name && learner.tokensMerged > 0),
  );
  await until("the page to say so", async () => /\d tokens/.test(await page.textContent("[role=status]")));
  assert.equal(await page.textContent("button"), "Stop");
  await page.click("button");
  await until("nothing to compute", async () => (await page.textContent("[role=status]")) === "Nothing computes.");
  await until("its Worker to be gone", async () => page.workers().length === 0);
  await page.close();
}

test("a page in plain HTML lends a machine", () => lend("plain/index.html", "a plain page"));

test("an app elsewhere that installs the package as the README says gets all of it from Vite's development server", async () => {
  const app = join(folder, "elsewhere");
  await mkdir(app);
  await writeFile(join(app, "package.json"), '{ "name": "elsewhere", "private": true, "type": "module" }');
  await writeFile(join(app, "index.html"), '<script type="module" src="/main.js"></script>');
  await writeFile(join(app, "main.js"), 'import { join } from "@archipelago-train/learner";\nwindow.join = join;\n');
  const readme = await readFile(join(root, "package/README.md"), "utf8");
  const [, line] = readme.match(/^ {4}cargo xtask web --package\n {4}npm install (.*)$/m);
  const args = line.replace("PATH/TO/archipelago/web-demo", root).split(" ");
  await run("npm", ["install", ...args, "--offline", "--no-audit", "--no-fund"], { cwd: app });
  const installed = "node_modules/@archipelago-train/learner";
  assert.ok((await lstat(join(app, installed))).isDirectory(), "it is a copy: Vite serves nothing outside the app");
  const server = await createServer({ root: app, logLevel: "error", configFile: false, server: { port: 0 } });
  try {
    await server.listen();
    const [base] = server.resolvedUrls.local;
    for (const [file, kind] of [
      ["worker.js", "text/javascript"],
      ["wasm/plain/archipelago_bg.wasm", "application/wasm"],
    ]) {
      const answer = await fetch(new URL(`${installed}/dist/${file}`, base));
      assert.deepEqual([answer.status, answer.headers.get("content-type")], [200, kind], file);
    }
  } finally {
    await server.close();
  }
});

test("a React app is checked, built, and lends a machine", async () => {
  const app = join(folder, "app");
  await cp(join(root, "examples/react"), app, { recursive: true });
  await mkdir(join(app, "node_modules/@archipelago-train"), { recursive: true });
  await mkdir(join(app, "node_modules/@types"));
  await cp(join(folder, "package"), join(app, "node_modules/@archipelago-train/learner"), { recursive: true });
  for (const name of DEPENDENCIES) await symlink(join(root, "node_modules", name), join(app, "node_modules", name));
  await run(join(root, "node_modules/.bin/tsc"), ["-p", app]).catch(({ stdout }) => assert.fail(stdout));
  await build({ root: app, logLevel: "warn", build: { outDir: join(folder, "site/react"), emptyOutDir: true } });
  await lend("react/index.html", "a React app");
});
