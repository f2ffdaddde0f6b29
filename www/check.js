// The table of kernels; the work is done in check.worker.js. `<html data-state>` is loading, ready, checking, done or missing.
import { format } from "./format.js";
import { $, calm, complain, fillTable, setState, showDevice, showMissing, state } from "./shell.js";
import { check as text, site } from "./text.js";

let worker, facts, report;

function start() {
  setState("loading");
  $("status").textContent = site.loading;
  worker?.terminate();
  worker = new Worker(new URL("./check.worker.js", import.meta.url), { type: "module" });
  worker.onerror = ({ message }) => fail(site.unexpected(message));
  worker.onmessage = ({ data }) => hear[data.kind](data);
}

function fail(message) {
  setState("lost");
  $("start").disabled = true;
  $("start").textContent = text.start;
  complain(message, { restart: true });
}

const hear = {
  ready(data) {
    facts = data.facts;
    showDevice(facts);
    showFacts();
    $("start").disabled = false;
    $("status").textContent = text.ready;
    setState("ready");
  },
  missing({ code, message }) {
    if (!showMissing({ code })) fail(site.unexpected(message));
  },
  failed: ({ message }) => fail(message),
  progress({ results, done, all }) {
    showResults(results);
    $("progress").value = done / all;
    $("status").textContent = text.running(done, all);
  },
  done({ profile, gradients, left, more, compiling, seconds }) {
    Object.assign(report, { profile, gradients, compiling, seconds });
    showFacts();
    showResults(report.results);
    const wasRun = ({ shapes, error }) => shapes || error, { results } = report;
    const run = results.filter(wasRun).length, missed = results.filter((result) => result.chosen && !wasRun(result)).length;
    const failures = results.filter(({ error }) => error).length + (gradients.error ? 1 : 0);
    const details = [text.compiling(compiling)];
    if (left && !missed) details.push(text.cut(left));
    if (results.length > run + missed) details.push(text.others(results.length - run - missed));
    report.summary = $("status").textContent = text.done(run, failures, missed, seconds);
    $("details").textContent = details.join(" ");
    report.verdict = [report.summary, ...details].join(" ");
    $("progress").value = 1;
    $("status").classList.add(failures ? "warn" : "good");
    $("start").textContent = text.start;
    $("rest").hidden = !more;
    $("copy").disabled = false;
    setState("done");
  },
};

const rows = () => [
  text.columns,
  ...report.results.toSorted((a, b) => b.chosen - a.chosen).map(({ name, chosen, possible, share, absolute, shapes, ms, error }) => (shapes || error
    ? [name, error ? `${text.failed}: ${error}` : text.passed, format(share, 2), format(absolute), String(shapes), format(ms, 2)]
    : [name, !possible ? text.impossible : !chosen ? text.unused : report.gradients ? text.missed : text.waiting, ...text.columns.slice(2).map(() => text.waiting)])),
  ...(report.gradients ? [[text.derivatives, report.gradients.error ? `${text.failed}: ${report.gradients.error}` : text.passed,
    format(report.gradients.worst / 1e-3, 2), format(report.gradients.worst), String(report.gradients.shapes), text.waiting]] : []),
];

function showResults(results) {
  report = { ...report, results };
  fillTable($("kernels"), rows());
  for (const cell of $("kernels").querySelectorAll("td:nth-child(2)")) cell.className = cell.textContent.startsWith(text.failed) ? "wrong" : "";
}

function factRows() {
  const { vendor, architecture, device, description, isSoftware, features } = facts;
  const names = text.names;
  return [
    [names.adapter, [description, device].filter(Boolean).join(", ") || [vendor, architecture].filter(Boolean).join(" ") || site.unnamedGpu],
    [names.vendor, vendor || names.none],
    [names.architecture, architecture || names.none],
    [names.kind, isSoftware ? names.software : names.hardware],
    ...(report?.profile ? [[names.profile, names[report.profile]]] : []),
    [names.browser, navigator.userAgent],
    [names.features, features.join(", ") || names.none],
  ];
}
const limitRows = () => Object.entries(facts.limits).sort().map(([name, value]) => [name, value.toLocaleString("en")]);

function showFacts() {
  fillTable($("facts"), factRows(), { head: false });
  fillTable($("limits"), limitRows(), { head: false });
  for (const cell of $("limits").querySelectorAll("th")) { // long names break between their words
    cell.replaceChildren(...cell.textContent.split(/(?=[A-Z][a-z])/).flatMap((word) => [document.createElement("wbr"), word]));
  }
}

/** The two tables in Markdown, for an issue. */
function markdown() {
  const table = ([head, ...body]) => [head, head.map(() => "---"), ...body].map((cells) => `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`).join("\n");
  const date = [text.names.date, new Date().toISOString()];
  return `${report.verdict ?? ""}\n\n${table(rows())}\n\n${table([[text.device, ""], date, ...factRows(), ...limitRows()])}\n`;
}

function check(what) {
  $("start").textContent = text.stop;
  $("copy").disabled = true;
  $("rest").hidden = true;
  $("results").hidden = false;
  $("status").classList.remove("warn", "good");
  $("details").textContent = "";
  setState("checking");
  worker.postMessage(what);
}

$("start").onclick = () => {
  if (state() === "checking") return worker.postMessage("stop");
  calm();
  report = { results: [] };
  check("check");
};
$("rest").onclick = () => check("rest");

$("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText(markdown());
    $("status").textContent = `${report.summary} ${text.copied}`;
  } catch (error) {
    complain(site.unexpected(error));
  }
};

$("restart").onclick = () => { calm(); start(); };

globalThis.gpuCheck = { report: () => ({ ...report, facts, markdown: report?.results && markdown() }) };
start();
