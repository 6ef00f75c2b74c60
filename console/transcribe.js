// The task of models of speech: a form with a recording, and its segments as they arrive.

import { events } from "./api.js";
import { element } from "./elements.js";

/** Minutes and seconds, such as "1:02.50". */
function time(seconds) {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${(seconds - 60 * minutes).toFixed(2).padStart(5, "0")}`;
}

/** As the other tasks in `tasks.js`. */
export const transcribe = {
  title: "Transcribe",
  fields: {
    file: { label: "Recording", type: "recording" },
    language: { label: "Language (code, or it is detected)", value: "" },
    prompt: { label: "Words before it", value: "" },
    translate: { label: "Into English", type: "checkbox" },
  },
  request: (model, { file, language, prompt, translate }) => {
    const body = new FormData();
    body.append("model", model.id);
    if (file) body.append("file", file);
    if (language) body.append("language", language);
    if (prompt) body.append("prompt", prompt);
    body.append("response_format", "verbose_json");
    body.append("stream", "true");
    return { path: `/v1/audio/${translate ? "translations" : "transcriptions"}`, body };
  },
  stream: async (request, output, signal) => {
    const table = element("table", { className: "segments" });
    output.append(table);
    for await (const { segment, language, duration } of events(request, signal)) {
      if (segment) {
        table.append(element("tr", {},
          element("td", {}, `${time(segment.start)} – ${time(segment.end)}`),
          element("td", {}, segment.text.trim())));
      } else {
        output.append(element("p", { className: "note" }, `${language || "silence"}, ${time(duration)}`));
      }
    }
  },
};
