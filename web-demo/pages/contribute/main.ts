import { join } from "archipelago";
const log = document.querySelector("#log")!;
document.querySelector("#start")!.addEventListener("click", () => {
  const learner = join(new URL(".", location.href).origin + "/" + location.hash, { engine: (new URLSearchParams(location.search).get("engine") ?? "auto") as "auto" });
  Object.assign(window, { learner });
  for (const name of ["preparing", "welcomed", "engine", "progress", "trouble", "disconnected", "afresh", "first_step", "standby", "forgetful"] as const)
    learner.on(name, (event) => (log.textContent = JSON.stringify(event) + "\n" + log.textContent!.slice(0, 4000)));
  learner.done.then((report) => (log.textContent += "\nended " + JSON.stringify(report)), (error) => (log.textContent += `\n${error.code} ${error}`));
});
