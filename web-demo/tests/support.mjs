// Shared parts of the browser tests: Chromium, the two programs, a static server.
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { connect, createServer as createRelay } from "node:net";
import { tmpdir } from "node:os";
import { extname, join, resolve, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { build } from "vite";

export const root = fileURLToPath(new URL("..", import.meta.url));

/** Longest wait for any condition, in milliseconds; far more than a busy machine needs. */
export const PATIENCE_MS = 120_000;

const quiet = [
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];
const swiftshader = [
  "--enable-unsafe-webgpu",
  "--enable-features=Vulkan,WebGPU",
  "--use-vulkan=swiftshader",
  "--use-webgpu-adapter=swiftshader",
  "--ignore-gpu-blocklist",
];

/** Flags of a Chromium with WebGPU on SwiftShader. */
export const chromiumFlags = [...quiet, ...swiftshader];
/** Flags of a Chromium without WebGPU. */
export const chromiumFlagsWithoutGpu = [...quiet, "--disable-features=WebGPU", "--disable-gpu"];

export const chromiumPath = process.env.CHROMIUM ?? "/usr/bin/chromium";

/** Starts Chromium; `CHROMIUM` names another binary than Debian's. */
export function launch(args = chromiumFlags) {
  return chromium.launch({ executablePath: chromiumPath, args, timeout: PATIENCE_MS });
}

/** Folder of the programs that `cargo build` made. */
function program(name) {
  const folder = process.env.ARCHIPELAGO_BIN ?? join(root, "../target/debug");
  return join(folder, name);
}

/** Starts the syncer with the arguments of `serve`; returns the process and its printed address. */
async function serving(...words) {
  const command = ["serve", "--listen", "127.0.0.1:0", "--quiet", ...words];
  const child = spawn(program("syncer-server"), command, { stdio: ["ignore", "pipe", "inherit"] });
  const url = await new Promise((found, failed) => {
    let text = "";
    child.stdout.on("data", (data) => {
      text += data;
      const match = /http:\/\/127\.0\.0\.1:\d+\//.exec(text);
      if (match) found(match[0]);
    });
    child.on("error", failed);
    child.on("exit", (code) => failed(new Error(`the syncer ended with ${code} before it listened: ${text}`)));
  });
  return { child, url };
}

/** Starts a syncer of several runs, at first without any; `stop` ends it. */
export async function startHouse() {
  const folder = await mkdtemp(join(tmpdir(), "archipelago-"));
  const { child, url } = await serving("--runs", folder);
  return {
    url,
    folder,
    /** Returns the figures of the run with this name. */
    async figures(name) {
      const { runs } = await (await fetch(new URL("v1/runs", url))).json();
      return runs.find((run) => run.name === name)?.figures;
    },
    async stop() {
      await end(child);
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** Starts a syncer on a free port; `stop` ends it. */
export async function startSyncer(...args) {
  const folder = await mkdtemp(join(tmpdir(), "archipelago-"));
  const preset = args.includes("--preset") ? [] : ["--preset", "tiny"];
  const { child, url } = await serving("--dir", join(folder, "run"), ...preset, ...args);
  const status = async () => (await fetch(new URL("v1/status", url))).json();
  return {
    url,
    folder: join(folder, "run"),
    /** Returns the status. */
    token: async () => (await readFile(join(folder, "run/admin.token"), "utf8")).trim(),
    status,
    /** Suspends the process with its sockets open, or resumes it. */
    freeze: (frozen) => child.kill(frozen ? "SIGSTOP" : "SIGCONT"),
    async stop() {
      child.kill("SIGCONT");
      await end(child);
      await rm(folder, { recursive: true, force: true });
    },
  };
}

/** Starts a native learner on the CPU with a duty cycle; `stop` ends it. */
export function startLearner(url, name, share) {
  const args = [
    "join",
    url,
    "--engine",
    "cpu",
    "--threads",
    "1",
    "--duty-cycle",
    String(share),
    "--name",
    name,
    "--quiet",
  ];
  const child = spawn(program("native-learner"), args, { stdio: ["ignore", "ignore", "inherit"] });
  return { stop: () => end(child) };
}

async function end(child) {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGINT");
  const timer = setTimeout(() => child.kill("SIGKILL"), 20_000);
  await ended;
  clearTimeout(timer);
}

/** Polls until `condition` returns something true, and returns that. `told` describes the state after a timeout. */
export async function until(what, condition, told = () => "") {
  const give_up = Date.now() + PATIENCE_MS;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > give_up) throw new Error(`waited in vain for: ${what} ${await told()}`.trim());
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** A network between a page and `url` that can be cut and restored. */
export async function relay(url) {
  const { hostname, port } = new URL(url);
  const open = new Set();
  let whole = true;
  const server = createRelay((near) => {
    if (!whole) return near.destroy();
    const far = connect(Number(port), hostname);
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      open.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => open.delete(one) && other.destroy());
      one.pipe(other);
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const cut = () => {
    whole = false;
    for (const socket of open) socket.destroy();
  };
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    cut,
    mend: () => (whole = true),
    stop() {
      cut();
      return new Promise((closed) => server.close(closed));
    },
  };
}

const kinds = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".mjs": "text/javascript",
  ".wasm": "application/wasm",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};

/** Serves the files below `folder` on loopback. */
export async function serve(folder) {
  const base = resolve(folder);
  const server = createServer(async (request, response) => {
    const path = resolve(base, `.${decodeURIComponent(new URL(request.url, "http://localhost").pathname)}`);
    try {
      if (!path.startsWith(base + sep)) throw new Error("outside");
      const body = await readFile(path);
      response.writeHead(200, { "content-type": kinds[extname(path)] ?? "application/octet-stream" }).end(body);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    stop: () => new Promise((closed) => server.close(closed)),
  };
}

/** Compiles and loads a module of the pages. */
export async function load(path) {
  const options = {
    configFile: false,
    logLevel: "error",
    root,
    build: { ssr: join(root, "pages", path), write: false },
  };
  const { output } = await build(options);
  return import(`data:text/javascript,${encodeURIComponent(output[0].code)}`);
}
