/** The runs of a server, with each run's state and its owner's buttons. */
import "./several.css";
import type { RunsView } from "../shared/api.js";
import { fillRows, find, say, setText } from "../shared/dom.js";
import { plural } from "../shared/format.js";
import { showNews } from "../shared/news.js";
import { unreachable } from "../shared/reach.js";
import { SentenceView } from "../shared/sentence.js";
import { keepToken, recallToken, takeToken } from "../shared/token.js";
import { blankCard, fillCard, type Order } from "./card.js";

/** Time between two requests, in milliseconds. */
const LOOK_MS = 2_000;
/** Timeout of a request, in milliseconds. */
const ANSWER_MS = 15_000;
/** Time without a list after which the server counts as silent, in milliseconds: as long as several requests. */
const SILENT_MS = 5_000;

/** Time of the last list, and the time since which the visible page has waited for one. */
let newsMs: number | null = null;
let listeningMs = performance.now();

const list = find("runs", HTMLUListElement);
/** Screen readers can wait for the number of machines. A silent server is announced at once. */
const sentence = new SentenceView({ quietMs: 30_000, tonesAtOnce: true });
const said = find("said", HTMLElement);
const token = find("owner-token", HTMLInputElement);
const dialog = find("sure", HTMLDialogElement);
const typed = find("sure-name", HTMLInputElement);
const confirm = find("sure-yes", HTMLButtonElement);
/** The order that waits for the owner's confirmation. */
let asked: { readonly order: Final; readonly name: string } | null = null;

/** Orders that cannot be undone. */
type Final = "finish" | "delete";
const FINAL: Readonly<Record<Final, { readonly title: string; readonly text: string; readonly button: string }>> = {
  finish: {
    title: "Finish this run for good?",
    text: "The learners' last progress is collected, then they are sent home, and training ends for good. Its pages stay, with the last text and the model to download.",
    button: "Finish the run",
  },
  delete: {
    title: "Delete this run for good?",
    text: "Its model, its history and its tape are removed from the server, and learners are sent home. Nothing brings them back.",
    button: "Delete the run",
  },
};

/** Requests the list, and shows its state at the top. */
async function look(): Promise<void> {
  try {
    const answer = await fetch("./v1/runs", { headers: owned(), signal: AbortSignal.timeout(ANSWER_MS) });
    if (!answer.ok) throw new Error(`the syncer answered ${answer.status}`);
    show((await answer.json()) as RunsView);
    newsMs = performance.now();
  } catch {
    tellApart();
  }
}

/** Shows the reason for a missing list, and since when. Does nothing while the reason is unknown. */
function tellApart(): void {
  const silentMs = performance.now() - Math.max(newsMs ?? 0, listeningMs);
  const then = { offline: "This page goes on when you are back.", silent: "This page tries again." };
  const told = unreachable(silentMs < SILENT_MS ? 0 : silentMs, then);
  if (told) sentence.show(told);
}

function show({ runs }: RunsView): void {
  const live = runs.reduce((sum, run) => sum + (run.figures?.live ?? 0), 0);
  sentence.show({
    tone: live > 0 ? "going" : "waiting",
    text:
      runs.length === 0
        ? "No model is in training here yet."
        : `${plural(runs.length, "model")}, and ${plural(live, "machine")} at work. Choose one to lend a machine to.`,
  });
  const isOwner = token.value.trim() !== "";
  fillRows(
    list,
    runs,
    () => blankCard(ask),
    (row, run) => fillCard(row, run, isOwner),
  );
}

function owned(): Record<string, string> {
  const shown = token.value.trim();
  return /^[\x21-\x7e]+$/.test(shown) ? { Authorization: `Bearer ${shown}` } : {};
}

/** Handles a button of a run. */
function ask(order: Order, name: string): void {
  if (order !== "delete" && order !== "finish") return void tell(order, name);
  asked = { order, name };
  typed.value = "";
  confirm.disabled = true;
  setText(find("sure-title", HTMLElement), FINAL[order].title);
  setText(find("sure-text", HTMLElement), FINAL[order].text);
  setText(find("sure-which", HTMLElement), name);
  setText(confirm, FINAL[order].button);
  dialog.showModal();
}

/** Gives an order for a run, and shows the outcome. */
async function tell(order: Order, name: string): Promise<void> {
  tellOf("Asking the syncer…", "waiting");
  const run = `./v1/runs/${encodeURIComponent(name)}`;
  if (order === "delete") await send(run, "DELETE", null);
  else await send(`${run}/${order === "start" || order === "archive" ? order : `admin/${order}`}`, "POST", null);
}

/** Sends an order; returns whether it was accepted. */
async function send(route: string, method: string, body: string | null): Promise<boolean> {
  try {
    const headers = body === null ? owned() : { ...owned(), "content-type": "application/json" };
    const answer = await fetch(route, { method, headers, body });
    const text = (await answer.text()).trim().slice(0, 400);
    const denied = "That is not the token of this server. It is in the file admin.token in the folder of the runs.";
    tellOf(answer.status === 401 ? denied : sentenced(text), answer.ok ? "done" : "trouble");
    return answer.ok;
  } catch {
    tellOf("The syncer could not be reached; try again.", "trouble");
    return false;
  } finally {
    await look();
  }
}

function sentenced(text: string): string {
  return text === "" ? "" : `${text[0]?.toUpperCase()}${text.slice(1)}.`;
}

function tellOf(text: string, tone: string): void {
  said.hidden = false;
  said.dataset["tone"] = tone;
  say(said, text);
}

token.value = takeToken() || recallToken();
keepToken(token.value);
token.addEventListener("input", () => {
  keepToken(token.value);
  void look();
});
find("owner", HTMLDetailsElement).open = token.value !== "";
typed.addEventListener("input", () => {
  confirm.disabled = typed.value !== asked?.name;
});
find("sure-no", HTMLButtonElement).addEventListener("click", () => dialog.close());
find("sure-form", HTMLFormElement).addEventListener("submit", () => {
  if (asked && typed.value === asked.name) void tell(asked.order, asked.name);
});
find("create", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  const preset = find("new-preset", HTMLSelectElement).value;
  const invite = find("new-invite", HTMLInputElement).checked ? '\ninvite = "auto"' : "";
  const settings = `preset = "${preset}"${invite}\n${find("new-settings", HTMLTextAreaElement).value}\n`;
  const field = find("new-name", HTMLInputElement);
  tellOf("The run is being created…", "waiting");
  const name = field.value;
  void send("./v1/runs", "POST", JSON.stringify({ name, settings })).then((made) => {
    // Unless the next name is being typed already.
    if (made && field.value === name) field.value = "";
  });
});

/** Refreshes for ever, one request after another; a hidden page waits. */
async function watch(): Promise<void> {
  if (!document.hidden) await look();
  setTimeout(() => void watch(), LOOK_MS);
}
void watch();
for (const name of ["online", "offline"]) window.addEventListener(name, tellApart);
// A hidden page sends no requests. That time does not count as silence of the server.
document.addEventListener("visibilitychange", () => {
  listeningMs = performance.now();
});
showNews(
  () => newsMs && (performance.now() - newsMs) / 1_000,
  () => false,
  tellApart,
);
