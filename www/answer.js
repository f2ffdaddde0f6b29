// A worker's side of ask.js.

export const tell = (kind, data) => postMessage({ kind, ...data });

/** An error's code. A map or a submit that a lost device ends can be told before the loss is: that is waited for. */
export async function codeOf({ code }, gpu) {
  const lost = code === "validation" && await Promise.race([gpu.lost, new Promise((done) => { setTimeout(done, 500); })]);
  return lost ? "device-lost" : code;
}

/** Answers by `commands`, `{ kind: (data) => answer }`: one call after the other, but for those of `now`. `gpu()` is the device. */
export function answer(commands, { gpu, now = [] }) {
  let turn = Promise.resolve();
  onmessage = ({ data: { kind, id, ...data } }) => {
    const failed = async (error) => {
      const { message, line, what, fingerprint } = error;
      tell("answer", { id, error: { message, code: await codeOf(error, gpu()), line, what, fingerprint } });
    };
    const work = () => Promise.resolve(data).then(commands[kind]).then((answer) => tell("answer", { id, answer }), failed);
    if (now.includes(kind)) work();
    else turn = turn.then(work);
  };
}
