// Recordings: a field to choose a file or to record one, with a player.

import { element, labelled } from "./elements.js";
import { read } from "./pictures.js";

const TYPES = "audio/*,.wav,.flac,.mp3,.ogg,.opus,.mp4,.m4a,.webm";

/** Records from the microphone until `stop()` is called. `onend(file)` gets the recording. */
async function record(onend) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  recorder.onstop = () => {
    for (const track of stream.getTracks()) track.stop();
    const [type] = recorder.mimeType.split(";");
    onend(new File(parts, `recording.${type.split("/")[1]}`, { type }));
  };
  recorder.start();
  return () => recorder.stop();
}

/**
 * A control to choose a recording. The property `recording` of its input has the file, `encoded` what a
 * request in JSON has of it; when they change, the input sends the event `input`.
 */
export function recordingField(label, properties) {
  const player = element("audio", { controls: true, hidden: true });
  const input = element("input", { ...properties, type: "file", accept: TYPES, recording: null, encoded: null });
  const button = element("button", { type: "button" }, "Record");
  const note = element("span", { className: "error" });
  let stop = null;  // ends the recording in progress

  async function take(file) {
    input.recording = file;
    input.encoded = file && await read(file);
    URL.revokeObjectURL(player.src);
    player.hidden = !file;
    if (file) player.src = URL.createObjectURL(file);
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  input.onchange = () => take(input.files[0] ?? null);
  button.onclick = async () => {
    note.textContent = "";
    if (stop) {
      stop();
      stop = null;
      button.textContent = "Record";
      return;
    }
    try {
      stop = await record((file) => {
        input.value = "";
        take(file);
      });
      button.textContent = "Stop recording";
    } catch (error) {
      note.textContent = `No microphone: ${error.message}`;
    }
  };
  return element("div", { className: "recording" }, labelled(label, input), button, player, note);
}
