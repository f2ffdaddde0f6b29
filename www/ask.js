// Asking a worker, whose side is answer.js: a call is `{ kind, id, … }`, its answer `{ kind: "answer", id, answer }` or `{ …, error }`.
import { complain } from "./shell.js";
import { site } from "./text.js";

/** `ask(kind, data)` of a worker: rejects as what was asked for did, with its `code`. What the worker tells by itself goes to `hear[kind]`. */
export function connect(worker, hear) {
  const calls = new Map();
  let next = 0;
  worker.onerror = ({ message }) => complain(site.unexpected(message), { restart: true });
  worker.onmessage = ({ data: { kind, ...data } }) => {
    if (kind !== "answer") return hear[kind](data);
    const { id, answer, error } = data, { resolve, reject } = calls.get(id);
    calls.delete(id);
    if (error) reject(Object.assign(new Error(error.message), error));
    else resolve(answer ?? {});
  };
  return (kind, data) => new Promise((resolve, reject) => {
    const id = next++;
    calls.set(id, { resolve, reject });
    worker.postMessage({ kind, id, ...data });
  });
}
