// The page: settings in, numbers and pictures out. The experiment itself runs in session.worker.js.
//
// For tests and the curious: `<html data-state>` is loading, ready, training, paused, lost or missing, and
// `loraDemo.snapshot()` gives the settings, ΔW*, and what was measured last, all of it after the same step.
import { connect } from "./ask.js";
import { Chart } from "./charts.js";
import { format, percent } from "./format.js";
import { colourTable, drawHeatMap, drawScale } from "./heatmap.js";
import { Session } from "./session.js";
import { $, calm, complain, download, setState as setPageState, showDevice, showMissing, state } from "./shell.js";
import { drawSpectrum } from "./spectrum.js";
import { layer as text, site } from "./text.js";

const LR = { adamw: "0.001", sgd: "0.1" };
const MOST_IN_FLIGHT = 4, ROUND_MS = 20, MEASURE_MS = 200;

let worker, ask, info, session;
let now; // what was measured last
let enabled = true, training = false, resume = false, loop = Promise.resolve();
let speed = NaN;

const charts = {
  loss: new Chart($("chart-loss"), [{ colour: "--muted", dash: [4, 4] }, { colour: "--floor", dash: [2, 3] }, { colour: "--accent" }]),
  grad: new Chart($("chart-grad"), [{ colour: "--accent" }, { colour: "--second" }]),
};

// ── State, messages ──

function setState(state, message) {
  setPageState(state);
  training = state === "training";
  const usable = ["ready", "training", "paused"].includes(state);
  for (const id of ["reset", "enabled", "download"]) $(id).disabled = !usable;
  $("train").disabled = !usable || !enabled;
  $("step").disabled = !usable || !enabled || training;
  $("train").textContent = training ? text.pause : text.train;
  if (message !== undefined) $("status").textContent = message;
}

function report(error) {
  if (state() === "lost") return; // its message is there already
  if (!error.code) console.error(error);
  complain(error.code ? error.message : site.unexpected(error), { restart: !session });
}

// What the user asks for happens in turn, so that nothing is rebuilt under a running step.
let turn = Promise.resolve();
const inTurn = (work) => (turn = turn.then(work).catch(report));

// ── Training ──

async function start() {
  await loop;
  if (training || !enabled || !["ready", "paused"].includes(state())) return;
  setState("training", text.training);
  loop = run(session).catch((error) => {
    if (state() === "training") setState("paused", "");
    report(error);
  });
}

/** Ends the loop after the round that is under way. */
async function stop() {
  if (!training) return;
  training = false;
  await loop;
  if (state() === "training") setState("paused", "");
}

async function run(session) {
  let steps = 1, measured = performance.now(), next = measured, cost = 0, since = { time: measured, step: session.step };
  while (training) {
    const began = performance.now();
    const pace = document.hidden ? 0 : Number($("settings").elements.pace.value); // timers stand still in hidden tabs
    const loss = await session.train(pace ? 1 : steps);
    charts.loss.add(session.step, now.lossOff, session.floor, loss);
    if (!Number.isFinite(loss)) {
      await show(session);
      setState("paused", "");
      return complain(text.diverged);
    }
    const took = performance.now() - began;
    steps = Math.max(1, Math.min(MOST_IN_FLIGHT, Math.round((steps * ROUND_MS) / took)));
    if (performance.now() - measured > Math.max(MEASURE_MS, 8 * cost)) {
      const before = performance.now();
      speed = (1000 * (session.step - since.step)) / (before - since.time);
      await show(session);
      measured = performance.now();
      cost = measured - before;
      since = { time: measured, step: session.step };
    } else {
      draw();
    }
    // Waiting for the GPU lets the page breathe; a timer only where the user wants it slow.
    if (!pace) continue;
    next = Math.max(next + 1000 / pace, performance.now());
    await new Promise((resolve) => setTimeout(resolve, next - performance.now()));
  }
  await show(session);
}

/** Measures and draws. */
async function show(session) {
  now = await session.measure();
  charts.grad.add(now.step, now.normA, now.normB);
  draw();
}

const shownLoss = () => (enabled ? now.lossOn : now.lossOff);

/**
 * A new layer for the settings in the form; where they are not acceptable, the old one stays and trains on. With `train` the
 * new one is trained wherever the old one was.
 */
async function rebuild(train = false) {
  const [next, measured] = await Session.make(ask, readSettings());
  const again = training || resume || (train && session?.step > 0);
  await stop();
  session?.dispose();
  [session, now] = [next, measured];
  speed = NaN;
  charts.loss.clear();
  charts.grad.clear();
  charts.loss.add(0, now.lossOff, session.floor, now.lossOn);
  calm();
  const { rank, targetRank } = session.settings;
  $("parameters").textContent = text.parameters(session.settings, session.scaling);
  $("too-small").hidden = $("floor-key").hidden = $("beyond-key").hidden = rank >= targetRank;
  $("too-small").textContent = rank < targetRank ? text.tooSmall(rank, targetRank, session.floor) : "";
  draw();
  setState("ready", text.ready);
  if (again && enabled) await start();
  resume = again && !enabled;
}

function readSettings() {
  const fields = $("settings").elements;
  const number = (name) => fields[name].valueAsNumber ?? Number(fields[name].value);
  const names = ["inFeatures", "outFeatures", "rank", "targetRank", "alpha", "lr", "seed"];
  return { ...Object.fromEntries(names.map((name) => [name, number(name)])), optimizer: fields.optimizer.value };
}

// ── Drawing, at most once a frame ──

let table, frame, painted;
const draw = () => { frame ??= requestAnimationFrame(paint); };

function put(id, value, words = format(value)) {
  $(id).value = String(value);
  $(id).textContent = words;
}

function paint() {
  frame = undefined;
  if (!session || !now) return;
  if (painted !== now) paintMaps();
  put("n-step", session.step, session.step.toLocaleString("en"));
  put("n-loss", shownLoss());
  $("n-loss-label").textContent = enabled ? text.lossOn : text.lossOff;
  put("n-base", now.lossOff);
  put("n-floor", session.floor);
  drawSpectrum($("spectrum"), session.sigma, shownSigma(), session.settings.rank);
  put("n-distance", enabled ? now.distance : 1, percent(enabled ? now.distance : 1));
  put("n-speed", speed, Number.isFinite(speed) ? format(speed, 3) : "–");
  put("n-grad-a", now.normA, format(now.normA, 2));
  put("n-grad-b", now.normB, format(now.normB, 2));
  if (!training) {
    describe("chart-loss", text.lossChart(session.step, shownLoss()));
    describe("chart-grad", text.gradChart(now.normA, now.normB));
    describe("spectrum", text.spectrumChart(session.sigma, shownSigma()));
  }
  charts.loss.draw();
  charts.grad.draw();
}

function paintMaps() {
  const { settings, delta } = session;
  const { inFeatures, outFeatures } = settings;
  const learnt = shownDelta();
  const limit = Math.max(...range(delta).map(Math.abs));
  table ??= colourTable(document.documentElement);
  drawHeatMap($("map-target"), delta, outFeatures, inFeatures, limit, table);
  drawHeatMap($("map-learnt"), learnt, outFeatures, inFeatures, limit, table);
  drawScale($("scale"), table);
  $("scale-low").textContent = `−${format(limit, 2)}`;
  $("scale-high").textContent = `+${format(limit, 2)}`;
  drawFactor("map-a", now.a, settings.rank, inFeatures);
  drawFactor("map-b", enabled ? now.b : new Float32Array(now.b.length), outFeatures, settings.rank);
  $("maps").style.setProperty("--rank", settings.rank);
  $("a-key").textContent = text.keyA(settings);
  $("b-key").textContent = text.keyB;
  describe("map-target", text.heatMap(text.mapDelta, settings, ...range(delta)));
  describe("map-learnt", enabled ? text.heatMap(text.mapAdapter(now.distance), settings, ...range(learnt)) : text.mapOff);
  painted = now;
}

/** A and B, each by a scale of its own. */
function drawFactor(id, values, rows, columns) {
  const [low, high] = range(values);
  drawHeatMap($(id), values, rows, columns, Math.max(-low, high) || 1, table);
  describe(id, text.heatMap(text.factors[id], { outFeatures: rows, inFeatures: columns }, low, high));
}

const shownDelta = () => (enabled ? now.delta : new Float32Array(now.delta.length));
const shownSigma = () => (enabled ? now.sigma : now.sigma.map(() => 0));
const range = (values) => [values.reduce((low, value) => Math.min(low, value), 0), values.reduce((high, value) => Math.max(high, value), 0)];
const describe = (id, words) => { if ($(id).ariaLabel !== words) $(id).ariaLabel = words; };

// ── What the user does ──

$("train").onclick = () => (training
  ? inTurn(async () => { await stop(); setState("paused", text.paused(session.step, shownLoss())); })
  : inTurn(start));

$("step").onclick = () => inTurn(async () => {
  if (training || !enabled) return;
  const loss = await session.train(1);
  charts.loss.add(session.step, now.lossOff, session.floor, loss);
  await show(session);
  setState("paused", text.stepped(session.step, shownLoss()));
});

$("reset").onclick = () => inTurn(async () => {
  await stop();
  await rebuild();
  setState("ready", text.reset);
});

$("enabled").onchange = () => inTurn(async () => {
  if (enabled === $("enabled").checked) return;
  if (enabled) resume = training;
  await stop();
  enabled = $("enabled").checked;
  await show(session);
  setState(session.step ? "paused" : "ready", enabled ? text.on(shownLoss()) : text.off(shownLoss()));
  if (enabled && resume) await start();
  if (enabled) resume = false;
});

$("download").onclick = () => inTurn(async () => {
  download(await session.save(), `lora-demo-r${session.settings.rank}.zip`);
});

// A slider sends many changes: those that wait are one.
let waiting = false;
function settingsChanged(train) {
  if (waiting) return;
  waiting = true;
  inTurn(() => { waiting = false; return rebuild(train); });
}
$("settings").onsubmit = (event) => event.preventDefault();
$("settings").oninput = ({ target }) => {
  if (target.name !== "rank") return;
  $("rank-value").value = target.value;
  settingsChanged(true); // what the rank does shows while it trains
};
$("settings").onchange = ({ target }) => {
  const fields = $("settings").elements;
  if (target.name === "lr") {
    return inTurn(async () => { await session.setLr(target.valueAsNumber); calm(); });
  }
  if (target.name === "optimizer") fields.lr.value = LR[target.value];
  if (!["pace", "rank"].includes(target.name)) settingsChanged();
};

$("restart").onclick = () => inTurn(async () => { await boot(); $("train").focus(); });

matchMedia("(prefers-color-scheme: dark)").onchange = () => { table = painted = undefined; draw(); };

// ── The device ──

async function boot() {
  setState("loading", site.loading);
  calm();
  session = undefined;
  worker?.terminate();
  worker = new Worker(new URL("./session.worker.js", import.meta.url), { type: "module" });
  ask = connect(worker, { lost });
  try {
    ({ info } = await ask("open"));
  } catch (error) {
    if (!showMissing(error)) throw error;
    return setState("missing", "");
  }
  showDevice(info);
  $("settings").elements.pace.value = info.isSoftware ? "0" : "100"; // a GPU would be done before the eye has seen it
  await rebuild();
}

function lost({ message }) {
  setState("lost", "");
  complain(site.lost(message), { restart: true });
}

globalThis.loraDemo = {
  snapshot: () => ({
    settings: session.settings, step: now.step, enabled, loss: shownLoss(), lossOff: now.lossOff,
    distance: now.distance, target: session.delta, learnt: shownDelta(), sigma: shownSigma(), hidden: session.sigma, floor: session.floor, scaling: session.scaling, info,
  }),
  destroyDevice: () => ask("destroy").catch(() => {}),
};

inTurn(boot);
