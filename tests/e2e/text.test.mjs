// From JSONL and chats to token ids and labels. Needs neither a page nor a GPU.
import assert from "node:assert/strict";
import { test } from "node:test";
import { chunkTokens, parseJsonl, tokenizeExamples } from "../../dist/index.js";

// A token for each character.
const encode = (text) => [...text].map((c) => c.codePointAt(0));
const text = (ids) => String.fromCodePoint(...ids.filter((id) => id > 0));
// What is learned, with a dot for each token that is not.
const learned = ({ labels }) => [...labels].map((id) => (id === -100 ? "." : id === 0 ? "$" : String.fromCodePoint(id))).join("");
const template = (messages, addGenerationPrompt) =>
  messages.map(({ role, content }) => `<${role}>${content}</>`).join("") + (addGenerationPrompt ? "<assistant>" : "");
const failure = (work) => {
  try {
    work();
  } catch (error) {
    return error;
  }
  assert.fail("nothing was thrown");
};

test("JSONL is read line by line, and what is wrong is told by its line", () => {
  const lines = [
    '\uFEFF{"prompt":"a","completion":"b","id":7}', "", '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"r"}]}',
    '{"text":"t"}', "{", "[]", '{"prompt":"a"}', '{"prompt":"a","completion":""}', '{"messages":[]}',
    '{"messages":[{"role":"user","content":"q"}]}', '{"messages":[{"role":"assistant","content":["r"]}]}', "{}", "null", '{"text":3}',
  ];
  for (const newline of ["\n", "\r\n"]) {
    const { examples, errors } = parseJsonl(lines.join(newline));
    assert.deepEqual(examples, [
      { prompt: "a", completion: "b" },
      { messages: [{ role: "user", content: "q" }, { role: "assistant", content: "r" }] },
      { text: "t" },
    ]);
    assert.deepEqual(errors.map(({ line }) => line), [5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
    assert.match(errors[0].message, /JSON/);
    assert.match(errors[2].message, /completion/);
    assert.match(errors[5].message, /assistant/);
    assert.match(errors[6].message, /messages\[0\]/);
  }
  assert.deepEqual(parseJsonl(""), { examples: [], errors: [] });
  assert.equal(failure(() => parseJsonl(3)).code, "invalid-argument");
});

test("what is null counts as absent, and a reply of the weight 0 is not learned", () => {
  const { examples, errors } = parseJsonl([
    '{"text":"a","messages":null,"prompt":null,"completion":null}', '{"prompt":"a","completion":"b","messages":null,"text":null}',
    '{"messages":[{"role":"assistant","content":"no","weight":0},{"role":"user","content":"q","weight":null},{"role":"assistant","content":"r","weight":1}],"text":null}',
    '{"messages":[{"role":"assistant","content":"no","weight":0}]}', '{"messages":[{"role":"assistant","content":"r","weight":0.5}]}', '{"text":null}',
  ].join("\n"));
  const chat = [{ role: "assistant", content: "no", weight: 0 }, { role: "user", content: "q" }, { role: "assistant", content: "r" }];
  assert.deepEqual(examples, [{ text: "a" }, { prompt: "a", completion: "b" }, { messages: chat }]);
  assert.deepEqual(errors.map(({ line }) => line), [4, 5, 6]);
  assert.match(errors[0].message, /assistant/);
  assert.match(errors[1].message, /messages\[0\].*weight/);
  const { examples: [{ inputIds, labels }] } = tokenizeExamples([{ messages: chat }], { encode, maxTokens: 200, chatTemplate: template });
  assert.equal(text(inputIds), "<assistant>no</><user>q</><assistant>r</>");
  assert.equal(learned({ labels }), `${".".repeat("<assistant>no</><user>q</><assistant>".length)}r</>`);
});

test("only completions and replies are learned", () => {
  const { examples, truncated, dropped } = tokenizeExamples([
    { prompt: "ask", completion: "yes" },
    { text: "all" },
    { messages: [{ role: "system", content: "s" }, { role: "user", content: "q" }, { role: "assistant", content: "one" }, { role: "user", content: "p" }, { role: "assistant", content: "two" }] },
  ], { encode, maxTokens: 200, bosTokenId: 0, eosTokenId: 0, chatTemplate: template });
  assert.deepEqual(examples.map(learned), [
    "....yes$", ".all$",
    "." + ".".repeat("<system>s</><user>q</><assistant>".length) + "one</>" + ".".repeat("<user>p</><assistant>".length) + "two</>",
  ]);
  assert.equal(text(examples[2].inputIds), "<system>s</><user>q</><assistant>one</><user>p</><assistant>two</>");
  assert.deepEqual([truncated, dropped], [0, []]);
});

test("what truncation drops is counted", () => {
  const { examples, truncated, tokensDropped, dropped } = tokenizeExamples([
    { prompt: "ab", completion: "cdef" }, { prompt: "abcdef", completion: "g" }, { text: "ab" }, { text: "a" },
  ], { encode, maxTokens: 4 });
  assert.deepEqual(examples.map(learned), ["..cd", "ab"]);
  assert.deepEqual([truncated, tokensDropped, dropped], [2, 5, [1, 3]]);
});

test("a template that cannot be taken apart, or is missing, is an error that names the example", () => {
  const chat = [{ text: "x" }, { messages: [{ role: "user", content: "q" }, { role: "assistant", content: "r" }, { role: "assistant", content: "r" }] }];
  const counting = (messages) => `${messages.length} messages`;
  for (const chatTemplate of [undefined, counting]) {
    const { code, message } = failure(() => tokenizeExamples(chat, { encode, maxTokens: 9, chatTemplate }));
    assert.equal(code, "invalid-argument");
    assert.match(message, /examples\[1\]/);
  }
  assert.equal(failure(() => tokenizeExamples(chat, { encode, maxTokens: 1 })).code, "invalid-argument");
  assert.equal(failure(() => tokenizeExamples(chat, { encode: 3, maxTokens: 9 })).code, "invalid-argument");
  assert.equal(failure(() => tokenizeExamples(chat, { encode, maxTokens: 9, maxLength: 9 })).code, "unknown-option");
  assert.equal(failure(() => tokenizeExamples([{}], { encode, maxTokens: 9 })).code, "invalid-argument");
});

test("a long text is cut into chunks that leave nothing out", () => {
  const ids = Array.from({ length: 11 }, (_, i) => i);
  const chunks = (options) => chunkTokens(ids, options).map(({ inputIds }) => [...inputIds]);
  assert.deepEqual(chunks({ length: 4 }), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]);
  assert.deepEqual(chunks({ length: 5 }), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]); // a rest of one predicts nothing
  assert.deepEqual(chunks({ length: 8, stride: 4 }), [[0, 1, 2, 3, 4, 5, 6, 7], [4, 5, 6, 7, 8, 9, 10]]);
  assert.deepEqual(chunkTokens([1], { length: 4 }), []);
  assert.equal(failure(() => chunkTokens(ids, { length: 1 })).code, "invalid-argument");
});
