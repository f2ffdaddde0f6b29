// What every page with a GPU has: its state, messages, and what is said where there is no WebGPU.
//
// For tests and the curious, `<html data-state>` tells how far a page is.
import { site } from "./text.js";

export const $ = (id) => document.getElementById(id);

export const state = () => document.documentElement.dataset.state;
export const setState = (state) => { document.documentElement.dataset.state = state; };

/** Shows a message until it is dismissed; one with `restart` stays until the page starts again, by a button with `words` on it. */
export function complain(message, { restart = false, words = site.again } = {}) {
  $("problem-text").textContent = message;
  $("restart").textContent = words;
  $("restart").hidden = !restart;
  $("dismiss").hidden = restart;
  $("problem").hidden = false;
}

export const calm = () => { $("problem").hidden = true; };
$("dismiss").onclick = calm;

/** In place of the page: what it would need. False where the error means something else. */
export function showMissing({ code }) {
  if (!site.missing[code]) return false;
  $("missing-text").textContent = site.missing[code];
  $("missing").hidden = false;
  $("app").hidden = true;
  setState("missing");
  return true;
}

export function showDevice({ vendor, architecture, description, isSoftware }) {
  $("device").textContent = description || [vendor, architecture].filter(Boolean).join(" ") || site.unnamedGpu;
  $("software").hidden = !isSoftware;
}

/** A table row by row; the first row is the head, if there is one, and the first cell of each row names it. */
export function fillTable(table, rows, { head = true } = {}) {
  table.replaceChildren(...rows.map((cells, i) => {
    const row = document.createElement("tr");
    row.append(...cells.map((words, column) => {
      const cell = document.createElement((head && i === 0) || column === 0 ? "th" : "td");
      if (cell.tagName === "TH") cell.scope = head && i === 0 ? "col" : "row";
      cell.textContent = words;
      return cell;
    }));
    return row;
  }));
}

export function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
