// The page: starts the worker, shows its records, and stops it.
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const status = document.querySelector("#status");

worker.onmessage = ({ data: { record, done, error } }) => {
  if (record) status.value = `step ${record.step}: loss ${record.loss.toExponential(3)}`;
  if (error) status.value = `${error.code}: ${error.message}`;
  if (done) status.value = `done after ${done.steps} steps: loss ${done.loss.toExponential(3)}`;
  document.documentElement.dataset.state = error ? "failed" : done ? "done" : "training";
};
document.querySelector("#stop").onclick = () => worker.postMessage({ stop: true });
worker.postMessage({ start: { steps: Number(new URLSearchParams(location.search).get("steps") ?? 2000) } });
