// The language model's page; the work is done in lm.worker.js. `<html data-state>` is loading, ready, training, paused, lost or
// missing.
import { connect } from "./ask.js";
import { Chart } from "./charts.js";
import { filesOf, folderOf, keepFolder } from "./folders.js";
import { format } from "./format.js";
import { $, calm, complain, download, setState as setPageState, showDevice, showMissing, state } from "./shell.js";
import { model as text, site } from "./text.js";

const PROMPTS = { "chat.jsonl": "Question: What should I do on a rainy day?\n\nAnswer:" };
const base = new URL("./", location.href).href;

let worker, ask, modules, merges;
let own; // { files, name, dtype, folder? }: a model of the visitor's in place of the site's
let hasAdapter = false, wasTraining = false, current, samples = []; // current: the run's settings, name and text
let written = Promise.resolve(); // the end of what is being written
const chart = new Chart($("chart"), [{ colour: "--accent" }, { colour: "--second", points: true }], { log: false });

// ── The worker ──

function startWorker() {
  worker?.terminate();
  worker = new Worker(new URL("./lm.worker.js", import.meta.url), { type: "module" });
  ask = connect(worker, hear);
}

const hear = {
  device: ({ info }) => showDevice(info),
  loading({ loaded, total }) {
    $("progress").value = loaded / total;
    $("status").textContent = text.loading(loaded, total);
  },
  lost({ message }) {
    if (state() === "loading") return;
    wasTraining = state() === "training";
    setState("lost", "");
    complain(current ? text.lost(message) : site.lost(message), { restart: true, words: current ? text.carryOn : site.again });
  },
  text({ who, text }) { show(`${who}-text`, text); },
  step(record) {
    Object.assign(current, record);
    current.losses.push([record.step, record.loss]);
    put("n-step", record.step, `${record.step}/${current.settings.steps}`);
    put("n-loss", record.loss);
    put("n-perplexity", Math.exp(record.loss));
    put("n-speed", record.tokensPerSecond, format(record.tokensPerSecond));
    put("n-left", record.left, text.time(record.left));
    $("progress").value = record.step / current.settings.steps;
    $("status").textContent = text.training(record.step, current.settings.steps);
    chart.add(record.step, record.loss, null);
    chart.draw();
    if (!Number.isFinite(record.loss)) complain(text.diverged);
  },
  sample(entry) { samples.push(entry); showSamples(); },
  unsaved: ({ message }) => complain(text.unsaved(message)),
  rest({ step, done }) {
    hasAdapter = true;
    setState(done ? "ready" : "paused", done ? text.done(step, current.loss, best()) : text.paused(step));
    listRuns();
  },
  failed({ message, code }) {
    if (code === "device-lost") return; // told already
    setState("ready", "");
    complain(message);
  },
};

const explain = (error) => complain(text.problems[error.code]?.(error) ?? (error.code ? error.message : text.failed(error.message)));

const act = (work) => async () => {
  try {
    await work();
  } catch (error) {
    if (error.code !== "device-lost" && state() !== "lost") explain(error);
  }
};

// ── State ──

let lock;
async function keepAwake(on) {
  try {
    if (on && !lock) lock = await navigator.wakeLock?.request("screen");
    else if (!on) { await lock?.release(); lock = undefined; }
  } catch { /* hidden, or not allowed: the training goes on all the same */ }
}

function setState(state, message) {
  setPageState(state);
  const training = state === "training", idle = ["ready", "paused"].includes(state);
  $("train").disabled = !idle && state !== "writing"; // which it ends
  $("train").textContent = state === "paused" ? text.again : text.train;
  $("pause").disabled = !training;
  $("stop").disabled = !training && state !== "paused";
  $("write").disabled = !idle;
  $("scale").disabled = !idle || !hasAdapter;
  for (const id of ["download", "download-gguf"]) $(id).disabled = !idle || !hasAdapter;
  $("download-merged").disabled = !idle || !hasAdapter || !merges;
  $("adapter-file").disabled = !idle;
  // Text and settings can be seen to while the first model comes.
  const coming = state === "loading" && !modules;
  for (const field of $("settings").elements) field.disabled = !["ready", "writing"].includes(state) && !(coming && !field.closest("#own"));
  if (message !== undefined) $("status").textContent = message;
  keepAwake(training);
}

/** Ends what is being written, so that something else may begin. */
async function quiet() {
  if (state() === "writing") {
    ask("stopWriting");
    await written.catch(() => {}); // told where it was asked for
  }
}

function put(id, value, words = format(value)) {
  $(id).value = String(value);
  $(id).textContent = words;
}

/** What was written, with the prompt before it set off. */
function show(id, words, prompt = $("prompt").value) {
  const before = document.createElement("b");
  before.textContent = prompt.replaceAll("\\n", "\n");
  $(id).replaceChildren(before, words);
}

function showSamples() {
  const last = samples.at(-1);
  if (!last) return;
  const { prompt } = current.settings;
  show("base-text", samples[0].text, prompt);
  if (last.step) {
    show("adapter-text", last.text, prompt);
    $("sample-step").textContent = text.afterStep(last.step);
  }
  if (last.held !== undefined) {
    put("n-held", last.held);
    chart.add(last.step, null, last.held);
    chart.draw();
  }
  $("samples-fold").hidden = samples.length < 3;
  $("samples").replaceChildren(...samples.slice(1, -1).map(({ step, text: words }) => {
    const item = document.createElement("li");
    item.value = step;
    item.textContent = prompt + words;
    return item;
  }));
}

/** The step after which the text held out was guessed best, where it is guessed clearly worse in the end. */
function best() {
  const { step, held } = samples.reduce((best, sample) => (sample.held < best.held ? sample : best), samples[0] ?? {});
  return samples.at(-1)?.held > 1.02 * held ? step : 0;
}

// ── The model ──

const field = (name) => $("settings").elements.namedItem(name);
const RATES = { small: "0.003", own: "0.0005" }; // larger models learn by smaller steps

function showModel(found) {
  ({ modules, merges } = found);
  hasAdapter = false;
  current = undefined;
  clearRun();
  $("model-name").textContent = own?.name ?? text.small;
  $("model-facts").textContent = text.modelFacts(found);
  const kinds = {};
  for (const name of modules) kinds[name.replace(/^.*\.\d+\./, "")] = (kinds[name.replace(/^.*\.\d+\./, "")] ?? 0) + 1;
  $("module-names").replaceChildren(...Object.entries(kinds).map(([kind, n]) => Object.assign(document.createElement("li"), { textContent: `${n} × ${kind}` })));
  $("small-model").hidden = !own;
  $("merged-hint").hidden = merges;
  field("length").max = Math.min(own ? 4096 : 512, found.maxPositions);
  if (field("length").valueAsNumber > Number(field("length").max)) field("length").value = field("length").max;
  if (Object.values(RATES).includes(field("lr").value)) field("lr").value = own ? RATES.own : RATES.small;
  return showEstimate();
}

async function showEstimate() {
  if (!modules) return;
  const numbers = ["rank", "alpha", "batchSize", "length"].map(field);
  if (numbers.some(({ validity }) => !validity.valid)) return;
  const [rank, alpha, batchSize, length] = numbers.map(({ valueAsNumber }) => valueAsNumber);
  const answer = await ask("estimate", { rank, alpha, batchSize, length, modules: field("modules").value }).catch((error) => error);
  $("estimate").textContent = answer.total ? text.estimate(answer) : answer.message;
  $("estimate").classList.toggle("warn", !answer.fits);
}
for (const name of ["rank", "alpha", "batchSize", "length", "modules"]) field(name).addEventListener("input", () => { showEstimate(); });

/** Another model: `next` as `own` is, or undefined for the site's. The one that is there stays where that does not work. */
async function openModel(next) {
  await quiet();
  if (state() !== "ready") return complain(text.busy);
  calm();
  setState("loading", text.opening(next?.name ?? text.small));
  try {
    const { folder, ...files } = next ?? {};
    const found = next ? await ask("open", files) : await ask("load", { base });
    own = next;
    await showModel(found);
    if (folder) await keepFolder(found.fingerprint, folder);
    setState("ready", text.opened(own?.name ?? text.small));
  } catch (error) {
    const lost = error.code === "device-lost"; // for a model too large, as some drivers have it
    if (lost) complain(site.lost(error.message), { restart: true });
    setState(lost ? "lost" : "ready", text.kept(own?.name ?? text.small));
    throw error;
  } finally {
    $("progress").value = 0;
  }
  await listRuns();
}

/** Of a folder's files those beside the config.json that is nearest to its top. */
function nearest(files) {
  const folder = ({ webkitRelativePath: path, name }) => path.slice(0, Math.max(0, path.length - name.length));
  const tops = files.filter(({ name }) => name === "config.json" || /\.gguf$/i.test(name)).map(folder).sort((a, b) => a.split("/").length - b.split("/").length);
  return tops.length ? files.filter((file) => folder(file) === tops[0]) : files;
}

async function openFiles(all, { name, folder: handle } = {}) {
  const files = nearest(all);
  const gguf = files.find((file) => /\.gguf$/i.test(file.name)), folder = files[0]?.webkitRelativePath.split("/")[0];
  await openModel({ files, name: name || folder || gguf?.name.replace(/\.gguf$/i, "") || text.ownName, dtype: $("packing").value, folder: handle });
  await write();
}

// Where the browser can name a folder for good, a run goes on with it without asking for it again.
$("pick-folder").hidden = !globalThis.showDirectoryPicker;
$("pick-folder").onclick = act(async () => {
  const folder = await showDirectoryPicker({ id: "model" }).catch((error) => { if (error.name !== "AbortError") throw error; });
  if (folder) await openFiles(await filesOf(folder), { name: folder.name, folder });
});

for (const id of ["model-folder", "model-files"]) {
  $(id).onchange = act(async () => {
    const files = [...$(id).files];
    $(id).value = ""; // so that the same can be chosen again
    if (files.length) await openFiles(files);
  });
}
$("small-model").onclick = act(async () => { await openModel(); await write(); });

// ── Texts ──

async function chooseStyle() {
  const style = $("style").value;
  if (!style) return $("text").focus();
  const response = await fetch(new URL(`texts/${style}`, base));
  $("text").value = await response.text();
  $("prompt").value = (PROMPTS[style] ?? "").replaceAll("\n", "\\n");
}

$("style").onchange = act(chooseStyle);
$("text").oninput = () => { $("style").value = ""; };

async function openText(file) {
  const words = await file.text();
  if (words.includes("\u0000") || words.includes("\ufffd")) return complain(text.noText(file.name));
  $("text").value = words;
  $("style").value = "";
  calm();
  const { examples, notes } = await ask("look", { text: words, length: field("length").valueAsNumber || 128 });
  if (state() === "ready") $("status").textContent = text.read(file.name, examples);
  if (text.notes(notes)) complain(text.notes(notes));
}
$("text-file").onchange = act(async () => { if ($("text-file").files[0]) await openText($("text-file").files[0]); });

// ── Training ──

function readSettings() {
  const fields = $("settings").elements;
  const settings = {};
  for (const name of ["rank", "alpha", "lr", "steps", "batchSize", "length", "every", "sampleTokens", "seed"]) {
    const field = fields.namedItem(name); // `length` is the collection’s own
    if (!field.checkValidity()) {
      field.closest("details")?.setAttribute("open", "");
      field.reportValidity();
      return;
    }
    settings[name] = field.valueAsNumber;
  }
  return { ...settings, modules: fields.modules.value, temperature: $("temperature").valueAsNumber, prompt: prompt() };
}

const prompt = () => $("prompt").value.replaceAll("\\n", "\n");

function newRun(settings, name, words) {
  current = { settings, name, text: words, step: 0, losses: [] };
  chart.steps = settings.steps;
  clearRun();
}

function clearRun() {
  samples = [];
  chart.clear();
  for (const id of ["n-loss", "n-perplexity", "n-held", "n-step", "n-speed", "n-left"]) put(id, NaN);
  $("adapter-text").textContent = $("sample-step").textContent = "";
  $("samples-fold").hidden = true;
  chart.draw();
}

$("train").onclick = act(async () => {
  calm();
  if (state() === "writing") ask("stopWriting");
  else if (state() === "paused") return goOn();
  const settings = readSettings();
  if (!settings) return;
  const words = $("text").value;
  const style = $("style").selectedOptions[0].textContent.trim();
  newRun(settings, `${own ? `${own.name.slice(0, 24)}: ` : ""}${style}, ${new Date().toLocaleString("sv").slice(0, 19)}`, words);
  setState("training", text.starting);
  if (matchMedia("(max-width: 599px)").matches) $("status").scrollIntoView(); // the settings are above it
  try {
    const { notes } = await ask("begin", { text: words, name: current.name, settings });
    if (text.notes(notes)) complain(text.notes(notes));
  } catch (error) {
    setState("ready", "");
    throw error;
  }
});

function goOn() {
  setState("training", text.training(current.step, current.settings.steps));
  return ask("go");
}

$("pause").onclick = act(async () => { $("status").textContent = text.pausing; await ask("pause"); });
$("stop").onclick = act(async () => {
  const was = state();
  await ask("stop");
  if (was === "paused" || state() === "paused") setState("ready", text.stopped(current.step));
  listRuns();
});

// A hidden page may be closed without another word.
document.onvisibilitychange = () => { if (document.hidden && state() === "training") ask("save").catch(() => {}); };

// ── Writing ──

for (const id of ["temperature", "scale"]) $(id).oninput = () => { $(`${id}-value`).value = $(id).value; };
$("scale").onchange = act(() => write());

const write = () => (written = writing());

async function writing() {
  if (!["ready", "paused"].includes(state())) return;
  const before = state();
  const maxTokens = $("settings").elements.namedItem("sampleTokens").valueAsNumber || 60;
  calm();
  setState("writing", text.writing);
  $("sample-step").textContent = "";
  for (const who of hasAdapter ? ["adapter", "base"] : ["base"]) show(`${who}-text`, "");
  try {
    const seed = $("settings").elements.seed.valueAsNumber || 0;
    await ask("compare", { prompt: prompt(), maxTokens, temperature: $("temperature").valueAsNumber, seed, scale: $("scale").valueAsNumber });
  } finally {
    if (state() === "writing") setState(before, text.written);
  }
}
$("write").onclick = act(() => write());

// ── Adapters ──

for (const [button, as] of Object.entries({ "download": "peft", "download-gguf": "gguf", "download-merged": "merged" })) {
  $(button).onclick = act(async () => {
    const { files } = await ask("adapter", { as });
    for (const [name, blob] of Object.entries(files)) download(blob, name);
  });
}

async function openAdapter(files) {
  await quiet();
  if (!["ready", "paused"].includes(state())) return complain(text.busy);
  const report = await ask("loadAdapter", { files });
  $("adapter-report").textContent = text.adapterReport(report);
  hasAdapter = true;
  current = undefined; // its run, if there was one, is free
  await listRuns();
  setState("ready", text.adapterLoaded);
  calm();
  await write();
}
$("adapter-file").onchange = act(async () => { await openAdapter([...$("adapter-file").files]); $("adapter-file").value = ""; });

/** The files of a drop, those of a folder among them. What was dropped can be asked for only while the event lasts. */
async function dropped({ items, files }) {
  const handles = [...items].map((item) => item.getAsFileSystemHandle?.());
  const loose = [...files], folder = [...items].map((item) => item.webkitGetAsEntry?.()).find((entry) => entry?.isDirectory);
  if (!folder) return { files: loose };
  const handle = (await Promise.all(handles)).find((one) => one?.kind === "directory");
  if (handle) return { files: await filesOf(handle), name: handle.name, folder: handle };
  const reader = folder.createReader(), entries = [];
  for (let some; !some || some.length;) entries.push(...(some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); })));
  const inside = entries.filter(({ isFile }) => isFile).map((entry) => new Promise((resolve, reject) => { entry.file(resolve, reject); }));
  return { name: folder.name, files: await Promise.all(inside) };
}

// Anything dropped anywhere: an adapter, a model, else a text.
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  const all = dropped(event.dataTransfer);
  act(async () => {
    const { files, name, folder } = await all, has = (pattern) => files.find((file) => pattern.test(file.name));
    if (!files.length) return;
    if (!["ready", "writing"].includes(state())) return complain(text.busy);
    const gguf = has(/\.gguf$/i);
    // llama.cpp's adapters say so in their first few keys.
    const isAdapter = has(/^adapter_config\.json$|^adapter_model\.|\.zip$/i) || (gguf && /adapter\.(type|lora)/.test(await gguf.slice(0, 1 << 16).text()));
    if (isAdapter) await openAdapter(files);
    else if (name || gguf || has(/^config\.json$|\.safetensors$/)) await openFiles(files, { name, folder });
    else await openText(files[0]);
  })();
});

// ── Saved runs ──

async function listRuns() {
  const { runs } = await ask("runs").catch(() => ({ runs: [] }));
  $("runs").replaceChildren(...runs.filter(({ savedAt }) => savedAt).map(({ name, bytes, inUse }) => {
    const item = document.createElement("li"), words = document.createElement("span");
    words.textContent = text.run(name, bytes);
    const button = (label, work) => Object.assign(document.createElement("button"), { type: "button", className: "small", textContent: label, ariaLabel: `${label}: ${name}`, onclick: act(work) });
    const own = inUse && name === current?.name;
    item.append(words, ...(own ? [] : [button(text.resume, () => resume(name)), button(text.delete, async () => { await ask("deleteRun", { name }); await listRuns(); })]));
    return item;
  }));
  $("runs-hint").firstChild.textContent = runs.length ? text.runsHint : text.noRuns;
  $("persist").hidden = !runs.length || Boolean(await navigator.storage?.persisted?.());
}

/** Goes on with a saved run; `again` where its own model had to be opened for it. */
async function resume(name, again = false) {
  await quiet();
  if (!["ready", "paused"].includes(state())) return;
  setState("loading", text.resuming);
  try {
    const { settings, text: words, losses, samples: old, step } = await ask("resume", { name });
    newRun(settings, name, words);
    Object.assign(current, { step, losses, loss: losses.at(-1)?.[1] });
    $("text").value = words;
    $("style").value = "";
    $("prompt").value = settings.prompt.replaceAll("\n", "\\n");
    for (const [field, value] of Object.entries(settings)) {
      const own = $("settings").elements.namedItem(field);
      if (own) own.value = value;
    }
    for (const [at, loss] of losses) chart.add(at, loss, null);
    for (const entry of old) { samples.push(entry); showSamples(); }
    chart.draw();
    put("n-step", step, `${step}/${settings.steps}`);
    put("n-loss", current.loss);
    put("n-perplexity", Math.exp(current.loss));
    $("progress").value = step / settings.steps;
    hasAdapter = true;
    const done = step >= settings.steps;
    setState(done ? "ready" : "paused", done ? text.done(step, current.loss, best()) : text.paused(step));
    await listRuns();
  } catch (error) {
    setState("ready", "");
    const folder = error.code === "other-model" && await folderOf(error.fingerprint);
    if (!folder || again) throw error;
    const files = nearest(await filesOf(folder));
    await openModel({ files, name: error.what, dtype: $("packing").value, folder });
    if (own?.folder === folder) await resume(name, true);
  }
}

$("persist").onclick = act(async () => { $("status").textContent = (await navigator.storage.persist()) ? text.persisted : text.notPersisted; await listRuns(); });

// ── The start ──

async function boot() {
  setState("loading", site.loading);
  calm();
  startWorker();
  hasAdapter = false;
  try {
    const [found] = await Promise.all([ask("load", { base }), $("text").value ? undefined : chooseStyle()]);
    const its = own;
    own = undefined;
    await showModel(found);
    const opened = its && await ask("open", { ...its, folder: undefined }).catch(explain);
    if (opened) {
      own = its;
      await showModel(opened);
    }
  } catch (error) {
    if (!showMissing(error)) complain(site.unexpected(error.message), { restart: true });
    return;
  }
  $("progress").value = 0;
  setState("ready", text.ready);
  await listRuns();
}

$("restart").onclick = act(async () => {
  const name = current?.name;
  await boot();
  if (!name) return;
  await resume(name);
  if (wasTraining && state() === "paused") await goOn();
});

globalThis.lmPage = {
  snapshot: () => ({ ...current, samples, hasAdapter, modules, model: own?.name }),
  destroyDevice: () => ask("destroy").catch(() => {}),
};

act(async () => { await boot(); if (state() === "ready") await write(); })();
