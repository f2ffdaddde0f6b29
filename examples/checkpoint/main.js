// The page: starts the worker, shows what it says, and tells it when the page is hidden. (Checkpoints needs no wasm.)
import { Checkpoints } from "../../dist/index.js";

const query = new URLSearchParams(location.search);
const [run, steps] = [query.get("run") ?? "example", Number(query.get("steps") ?? 2000)];
const [status, storage] = ["#status", "#storage"].map((id) => document.querySelector(id));
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const { dataset } = document.documentElement;

worker.onmessage = async ({ data: { resumed, record, saved, done, error } }) => {
  if (resumed !== undefined) dataset.resumed = resumed;
  if (record) {
    const left = record.secondsLeft === undefined ? "" : `, ${Math.ceil(record.secondsLeft)} s left`;
    status.value = `step ${record.step} of ${record.total}: loss ${record.loss.toExponential(3)}${left}`;
    if (record.checkpointError) storage.value = record.checkpointError;
  }
  if (saved ?? record?.checkpoint) dataset.saved = saved ?? record.checkpoint;
  if (error) status.value = `${error.code}: ${error.message}`;
  if (done) {
    status.value = `done after ${done.steps} steps: loss ${done.loss?.toExponential(3) ?? "as before"}`;
    dataset.adapter = done.adapter;
  }
  dataset.state = error ? "failed" : done ? "done" : "training";
  if (record?.checkpoint || done) {
    const runs = await Checkpoints.list();
    storage.value = runs.map(({ name, bytes, savedAt }) => `${name}: ${bytes} bytes, written ${savedAt?.toLocaleTimeString()}`).join("\n");
  }
};

// A hidden page may be closed without another word.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) worker.postMessage({ save: true });
});
document.querySelector("#persist").onclick = async () => {
  storage.value = (await Checkpoints.persist()) ? "The browser will keep the checkpoints." : "The browser may clear the checkpoints when space runs short.";
};
document.querySelector("#forget").onclick = async () => {
  worker.terminate();
  await Checkpoints.delete(run);
  location.reload();
};
worker.postMessage({ start: { run, steps } });
