// The page: models on the left, the chosen model's tasks in the middle, the server's load on the right.

import { listModels, TokenNeeded, useToken } from "./api.js";
import { element } from "./elements.js";
import { watchLoad } from "./load.js";
import { taskForm, TASKS } from "./tasks.js";

const REFRESH_MS = 5000;
const byId = (id) => document.getElementById(id);
let chosen = null;  // the id of the chosen model
let shown = "";  // the models in the list, as JSON
let form = null;  // of the chosen task

/** Lists the models, unless they are listed already: a new list would lose the focus. */
function showModels(models) {
  if (JSON.stringify(models) === shown) return;
  shown = JSON.stringify(models);
  byId("models").replaceChildren(...models.map((model) => {
    const tasks = model.tasks.join(", ");
    const button = element("button", { onclick: () => choose(model) }, model.id,
      element("small", {}, `${model.kind.replace("_", "-")} · ${tasks}`));
    button.ariaCurrent = String(model.id === chosen);
    return button;
  }));
}

function sizeOf({ kind, image, audio, tasks, max_model_len }) {
  if (audio) {
    const heard = tasks.includes("transcribe") ? "speech" : "recordings";
    return `${heard}, in windows of ${audio.window_seconds} s`;
  }
  return image && kind !== "decoder" ? `images of ${image.width} × ${image.height} pixels`
    : `up to ${max_model_len.toLocaleString("en")} tokens`;
}

function choose(model) {
  chosen = model.id;
  form?.stop();
  for (const button of byId("models").children) {
    button.ariaCurrent = String(button.firstChild.textContent === model.id);
  }
  const tasks = model.tasks.filter((task) => task in TASKS);
  if (model.kind === "decoder" && tasks.includes("generate")) tasks.push("chat");
  const place = element("div");
  const show = (task) => {
    form?.stop();
    form = taskForm(model, task);
    place.replaceChildren(form);
  };
  const tabs = tasks.length < 2 ? [] : tasks.map((task) => (
    element("button", { onclick: () => show(task) }, TASKS[task].title)));
  byId("task").replaceChildren(
    element("h2", {}, `${model.id} · ${sizeOf(model)}`),
    element("div", { className: "tasks" }, ...tabs), place);
  if (tasks.length > 0) show(tasks[0]);
}

async function refresh() {
  try {
    const models = await listModels();
    byId("access").hidden = true;
    byId("status").textContent = models.length === 1 ? "1 model" : `${models.length} models`;
    showModels(models);
    const model = models.find(({ id }) => id === chosen);
    if (!model && models.length > 0) choose(models[0]);
  } catch (error) {
    byId("access").hidden = !(error instanceof TokenNeeded);
    byId("status").textContent = error instanceof TokenNeeded
      ? error.message : `The server does not answer: ${error.message}`;
  }
}

byId("access").onsubmit = (event) => {
  event.preventDefault();
  useToken(byId("token").value);
  refresh();
};
await refresh();
setInterval(refresh, REFRESH_MS);
watchLoad(byId("load"));
